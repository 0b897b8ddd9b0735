"""`ops host install`: an environment from a stack's lock on a host, proven; the one in use is not touched."""

import base64
from pathlib import PurePosixPath
from typing import Any

from ops.config.profiles import load_stack
from ops.errors import ConfigError, OpsError, RemoteFailed, StepFailed
from ops.flows import software
from ops.flows.hosts import Project, connected
from ops.flows.report import failed
from ops.hosts.ssh import SshHost
from ops.model.inventory import HostSpec
from ops.model.ports import Reporter
from ops.model.result import HostResult
from ops.model.stack import Patch, Stack, Wheel
from ops.model.verdict import Outcome, Verdict, combine
from ops.render.argv import engine_argv, words
from ops.stacks import proof
from ops.stacks.compare import stale
from ops.stacks.lock import lock_path, need_lock, stack_folder

INSTALL_S = 7200.0
"""4 GB of wheels over 10 Mbit/s take an hour."""


def install(project: Project, name: str, spec: HostSpec, reporter: Reporter, *, profile: str | None) -> HostResult:
    """Install one stack on one host. Args: profile: whose command line the engine's own parser is asked to take."""
    try:
        stack = load_stack(project.root, name)
        place = target(project, stack, spec)
        argv = words(engine_argv(project.profile(profile), spec)) if profile else []
        with connected(spec) as host:
            return _install(project, stack, host, place, argv, reporter)
    except OpsError as error:
        return failed(spec, None, error)


def target(project: Project, stack: Stack, spec: HostSpec) -> dict[str, Any]:
    """Where a stack's environment is on a host: {kind, path, stack, lock}. Raises: ConfigError without a valid lock or
    without a folder for environments.
    """
    lock, digest = need_lock(project.root, stack.name)
    why = stale(stack, lock)
    if why:
        raise ConfigError(f"stack {stack.name}: the lock is old: {why}", hint=f"ops stack lock {stack.name}")
    if spec.stacks is None:
        raise ConfigError(
            "this host has no folder for environments",
            hint="set ops_stacks in the inventory, such as /opt/ops/stacks; ops_engine_python stays the agent's Python",
            host=spec.name,
        )
    path = f"{spec.stacks.rstrip('/')}/{stack.folder}"
    return {"kind": "venv", "path": path, "stack": stack.name, "lock": digest}


def _install(
    project: Project, stack: Stack, host: SshHost, place: dict[str, Any], argv: list[str], reporter: Reporter
) -> HostResult:
    lock, digest = need_lock(project.root, stack.name)
    folder = place["path"]
    present = host.call("venv.state", folder=folder)
    if not present["complete"]:
        _bring_own(project, stack, host, folder)
        try:
            host.call(
                "venv.install",
                folder=folder,
                lock=lock_path(project.root, stack.name).read_text(encoding="utf-8"),
                lock_sha256=digest,
                python=lock.python,
                patches=[PurePosixPath(patch.file).name for patch in stack.patches],
                timeout_s=INSTALL_S,
                wait_s=INSTALL_S + 60.0,
                on_event=lambda event: reporter.say(host.name, event["say"]),
                on_reconnect=lambda text: reporter.say(host.name, text),
            )
        except RemoteFailed as error:
            raise StepFailed(
                f"stack {stack.name} could not be installed: {error.message}",
                hint="run the same command again: what was fetched is kept; what runs was not touched",
                host=host.name,
            ) from error
    reporter.say(host.name, f"proving {folder} from the inside")
    gpus = host.call("machine.devices")["gpus"]
    verdicts = software.prove(host, place, lock, argv=argv, archs=proof.archs_of(gpus) if lock.kernel_archs else [])
    software.say_all(reporter, host.name, verdicts)
    outcome = combine(verdicts)
    if outcome is not Outcome.PASS:
        software.require(verdicts, host.name, f"environment {folder}")
    if not present["complete"]:
        host.call("venv.complete", folder=folder, proof={"stack": stack.name, "lock": digest})
    return _result(host.spec, stack, folder, verdicts, changed=not present["complete"])


def _bring_own(project: Project, stack: Stack, host: SshHost, folder: str) -> None:
    own: list[Wheel | Patch] = [*stack.wheels, *stack.patches]
    for entry in own:
        content = (stack_folder(project.root) / entry.file).read_bytes()
        host.call(
            "venv.put",
            folder=folder,
            name=PurePosixPath(entry.file).name,
            content=base64.b64encode(content).decode(),
            sha256=entry.sha256,
            wait_s=600.0,
        )


def _result(spec: HostSpec, stack: Stack, folder: str, verdicts: list[Verdict], *, changed: bool) -> HostResult:
    return HostResult.on(
        spec,
        outcome="installed" if changed else "unchanged",
        changed=changed,
        message=f"{stack.name} is at {folder}, proven",
        details={"stack": stack.name, "folder": folder, "checks": [v.model_dump(mode="json") for v in verdicts]},
    )
