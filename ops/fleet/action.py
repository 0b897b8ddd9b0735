"""The base of the playbooks' action plugins: arguments, the host, a process of its own, and the result for Ansible.

The plugins run on the controller, in the Python that has `ops`; nothing of Ansible's own connection is used, so a host
is reached exactly as `ops` reaches it.
"""

import ast
import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ops.config.settings import find_project
from ops.errors import Exit, OpsError
from ops.fleet import events
from ops.fleet.host_task import Told
from ops.fleet.lifeline import Emit, Ended, alone, die_with_parent
from ops.flows.hosts import Project
from ops.model.inventory import HostSpec
from ops.model.result import HostResult
from ops.remote import processes

_SPEC_KEYS = ("type", "required", "default", "choices", "elements", "no_log")


class EventReporter:
    """What a flow says, as events."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def say(self, host: str, text: str) -> None:
        self._emit({"event": "say", "host": host, "text": text})

    def step(self, host: str, kind: str, detail: str) -> None:
        self._emit({"event": "step", "host": host, "step": kind, "detail": detail})

    def phase(self, host: str, name: str, elapsed_s: float, expected_s: float | None) -> None:
        event = {"event": "phase", "host": host, "phase": name, "elapsed_s": round(elapsed_s, 1)}
        self._emit({**event, "expected_s": expected_s})

    def result(self, result: HostResult) -> None:
        self._emit({"event": "result", "host": result.host, "result": result.model_dump(mode="json")})

    def refused(self, reason: str) -> None:
        self._emit({"event": "refused", "reason": reason})


class Action(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """One plugin. `work` does it, in a process of its own, for the host of the task."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False
    FINAL: ClassVar[bool] = True
    """Whether its result is what became of the host (for `ops`' table)."""
    SKIPPED_IN_CHECK_MODE: ClassVar[str] = ""
    """Why there is nothing to foretell; empty: check mode is supported."""

    def check(self, project: Project, arguments: Mapping[str, Any]) -> None:
        """Look at files and arguments before anything else. Raises: OpsError."""

    def work(self, project: Project, spec: HostSpec, arguments: Mapping[str, Any], reporter: EventReporter) -> Told:
        """Do the task. Never raises an OpsError."""
        raise NotImplementedError

    def run(self, tmp: object = None, task_vars: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Called by Ansible in a forked worker. Raises: AnsibleActionFail for wrong arguments and files."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        _, arguments = self.validate_argument_spec(argument_spec=self._argument_spec())
        if self._task.check_mode and self.SKIPPED_IN_CHECK_MODE:
            return {"skipped": True, "skipped_reason": self.SKIPPED_IN_CHECK_MODE, "changed": False}
        name = str(variables["inventory_hostname"])
        path = os.environ.get(events.VARIABLE)
        try:
            project = project_of(variables)
            spec = project.host(name)
            self.check(project, arguments)
        except OpsError as error:
            raise AnsibleActionFail(_words(str(error), error.hint)) from error
        die_with_parent(os.getppid())
        touches = not self._task.check_mode
        answered = False

        def heard(event: events.Event) -> None:
            nonlocal answered
            answered = answered or (event["event"] == "result" and event["host"] == name)
            self._show(event)

        def work(emit: Emit) -> dict[str, Any]:
            def both(event: events.Event) -> None:
                if path:
                    events.append(path, event)
                if not path or event["event"] == "result":
                    emit(event)

            both({"event": "working", "host": name, "task": self._name, "final": self.FINAL and touches, **_myself()})
            told = self._told(project, spec, arguments, EventReporter(both))
            row = told.result.model_dump(mode="json")
            if self.FINAL:
                both({"event": "result", "host": name, "result": row, "unreachable": told.unreachable})
            both({"event": "worked", "host": name, "pid": os.getpid()})
            return {"row": row, "unreachable": told.unreachable, "diffs": list(told.diffs)}

        try:
            done = alone(work, heard)
        except Ended as ended:
            row = _broken(spec, ended, touches)
            if self.FINAL and path and not answered:
                events.append(path, {"event": "result", "host": name, "result": row.model_dump(mode="json")})
            message = _words(row.message, row.hint)
            return {"failed": True, "changed": True, "outcome": row.outcome, "exit_code": row.exit_code, "msg": message}
        return self._result(HostResult.model_validate(done["row"]), done["unreachable"], done["diffs"])

    @property
    def _name(self) -> str:
        return Path(inspect.getfile(type(self))).stem

    def _told(self, project: Project, spec: HostSpec, arguments: Mapping[str, Any], reporter: EventReporter) -> Told:
        try:
            return self.work(project, spec, arguments, reporter)
        except KeyboardInterrupt:
            result = HostResult.on(
                spec,
                outcome="interrupted",
                exit_code=130,
                changed=False,
                message="interrupted before anything was touched",
            )
            return Told(result)

    def _show(self, event: events.Event) -> None:
        """Print what a host's work says, for people who run the playbook themselves."""
        text = {"say": "text", "step": "step", "phase": "phase"}.get(str(event.get("event")))
        if text:
            self._display.display(f"  {event['host']}: {event[text]} {event.get('detail', '')}".rstrip())

    def _result(self, row: HostResult, unreachable: bool, diffs: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "changed": bool(row.changed),
            "failed": row.exit_code != 0 and not unreachable,
            "msg": _words(row.message, row.hint),
            "outcome": row.outcome,
            "exit_code": row.exit_code,
            "profile": row.profile,
            "release": row.release,
            "previous": row.previous,
            "verdict": row.gate["verdict"] if row.gate else None,
            "checks": row.gate["checks"] if row.gate else [],
            "phases": row.phases,
            "status": row.details,
        }
        if unreachable:
            found["unreachable"] = True
        if self._task.diff or self._task.check_mode:
            found["diff"] = [dict(diff) for diff in diffs]
        return found

    def _argument_spec(self) -> dict[str, Any]:
        """The options as the plugin's documentation declares them: one truth for ansible-doc and for checking."""
        file = Path(inspect.getfile(type(self))).resolve().parents[1] / "library" / f"{self._name}.py"
        documented = yaml.safe_load(documentation(file))["options"]
        return {name: {key: option[key] for key in _SPEC_KEYS if key in option} for name, option in documented.items()}


def documentation(file: Path) -> str:
    """The DOCUMENTATION text of a module file, without running it."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DOCUMENTATION":
            return str(ast.literal_eval(node.value))
    raise ValueError(f"{file}: no DOCUMENTATION")


def project_of(variables: Mapping[str, Any]) -> Project:
    """The project a playbook works for: OPS_PROJECT, else the folder above the inventory, else above the working
    directory. `ops_secrets` (from Ansible Vault, say) goes before the environment. Raises: ConfigError."""
    inventory = Path(str(variables["inventory_file"])).resolve()
    secrets = {str(name): str(value) for name, value in (variables.get("ops_secrets") or {}).items()}
    try:
        root = find_project(inventory.parent)
    except OpsError:
        root = find_project(Path.cwd())
    return Project(root, inventory, secrets)


def _myself() -> dict[str, Any]:
    """This process, so that a later one with its number is not taken for it."""
    facts = processes.stat(os.getpid())
    return {"pid": os.getpid(), "start": facts["starttime"] if facts else None}


def _broken(spec: HostSpec, ended: Ended, touches: bool) -> HostResult:
    """What became of a host whose process ended without saying so itself. touches: it may have changed something."""
    if ended.signal is None:
        return HostResult.on(spec, outcome="bug", exit_code=int(Exit.BUG), message=f"a bug in ops: {ended}")
    if not touches:
        message = f"the process that looked at {spec.name} was {ended}"
        return HostResult.on(spec, outcome="refused", exit_code=int(Exit.REFUSED), message=message, changed=False)
    return HostResult.on(
        spec,
        outcome="unsafe",
        exit_code=int(Exit.UNSAFE),
        message=f"the process that worked on {spec.name} was {ended}; what it did not confirm, the host's guard undoes",
        hint=f"ops status --host {spec.name}",
    )


def _words(message: str, hint: str) -> str:
    return f"{message}\nNext: {hint}" if hint else message
