"""A playbook as a process: started, followed by its events, and ended in order on Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.errors import OpsError
from ops.fleet.events import VARIABLE, Event, Tail
from ops.flows.hosts import Project
from ops.remote import processes

Show = Callable[[Event], None]
_POLL_S = 0.1
_STDERR_KEPT = 4000


@dataclass(frozen=True)
class Worker:
    """A process that works on a host; its start tells it from a later one with the same number."""

    host: str
    start: int | None


@dataclass
class Followed:
    """What a playbook's events said.

    Attributes:
        results: the latest result of each host. unreachable: host to reason. refused: why a wave was not begun.
        failures: (host, task, message) of tasks that failed. working: processes at work. unanswered: hosts whose work
            began and has not said what became of them.
    """

    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)
    refused: str = ""
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    diffs: dict[str, str] = field(default_factory=dict)
    working: dict[int, Worker] = field(default_factory=dict)
    unanswered: set[str] = field(default_factory=set)
    code: int = 0
    interrupted: int = 0
    stderr: str = ""

    def take(self, event: Event) -> None:
        """Keep what matters of one event."""
        kind = event["event"]
        if kind == "result":
            self.results[event["host"]] = event["result"]
            self.unanswered.discard(event["host"])
        elif kind == "unreachable":
            self.unreachable[event["host"]] = event["message"]
        elif kind == "refused":
            self.refused = event["reason"]
        elif kind == "failed":
            self.failures.append((event["host"], event["task"], event["message"]))
        elif kind == "working":
            self.working[event["pid"]] = Worker(event["host"], event["start"])
            if event["final"]:
                self.unanswered.add(event["host"])
        elif kind == "worked":
            self.working.pop(event["pid"], None)
        elif kind == "ok" and event.get("diff"):
            self.diffs[event["host"]] = event["diff"]


def playbooks() -> Path:
    """Where the playbooks are: inside the installed package, or beside it in a checkout.

    Raises: FileNotFoundError when the installation is broken.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_playbooks", package.parent / "playbooks"):
        if (folder / "deploy.yml").is_file():
            return folder
    raise FileNotFoundError(f"no playbooks in {package / '_playbooks'} nor {package.parent / 'playbooks'}")


def run(project: Project, name: str, variables: Mapping[str, Any], show: Show, *, check: bool = False) -> Followed:
    """Run one playbook to its end and return what its events said.

    Ctrl-C and SIGTERM: the hosts being changed restore themselves and the playbook ends; a second one leaves them to
    their guards. Raises: OpsError when Ansible itself could not work.
    """
    with tempfile.TemporaryDirectory(prefix="ops-fleet-") as folder:
        path = Path(folder) / "events.jsonl"
        with (Path(folder) / "stderr").open("w+", encoding="utf-8") as stderr:
            process = subprocess.Popen(
                _command(project, name, variables, check),
                cwd=project.root,
                env=_environment(project, path),
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C reaches it once, through us
            )
            found = _follow(process, Tail(path), show)
            stderr.seek(0)
            found.stderr = stderr.read()[-_STDERR_KEPT:]
    if found.code and not (found.results or found.failures or found.unreachable or found.interrupted):
        raise OpsError(f"ansible-playbook ended with {found.code} before any host was asked:\n{found.stderr}")
    return found


def _command(project: Project, name: str, variables: Mapping[str, Any], check: bool) -> list[str]:
    inventory = project.inventory or project.root / "envs" / "hosts.yml"
    words = ["-m", "ansible", "playbook", "-i", str(inventory), str(playbooks() / name)]
    words += ["-e", json.dumps(dict(variables)), *(("--check", "--diff") if check else ())]
    return [sys.executable, *words]


def _environment(project: Project, path: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    vault = {key: value for key, value in os.environ.items() if key.startswith("ANSIBLE_VAULT")}
    return {
        **kept,
        **vault,
        VARIABLE: str(path),
        "OPS_PARENT": str(os.getpid()),
        "OPS_PROJECT": str(project.root),
        "ANSIBLE_CONFIG": str(playbooks() / "ansible.cfg"),
        "ANSIBLE_STDOUT_CALLBACK": "ops_events",
        "ANSIBLE_NOCOLOR": "1",
    }


def _follow(process: "subprocess.Popen[bytes]", tail: Tail, show: Show) -> Followed:
    found = Followed()

    def drain() -> None:
        for event in tail.new():
            found.take(event)
            show(event)

    def interrupt(number: int, frame: object) -> None:
        found.interrupted += 1

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    answered = 0
    try:
        while process.poll() is None or _alive(found):
            drain()
            if found.interrupted > answered:
                answered += 1
                _pass_on(process, found, first=answered == 1, show=show)
            time.sleep(_POLL_S)
        drain()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    found.code = process.returncode
    return found


def _alive(found: Followed) -> bool:
    """Whether a host's work still goes on: it outlives a playbook that was ended."""
    for pid, worker in list(found.working.items()):
        if not processes.alive(pid, worker.start):
            del found.working[pid]
    return bool(found.working)


def _pass_on(process: "subprocess.Popen[bytes]", found: Followed, *, first: bool, show: Show) -> None:
    hosts = ", ".join(sorted({worker.host for worker in found.working.values()})) or "none"
    text = f"restoring what is being changed: {hosts}" if first else f"left to their guards: {hosts}"
    show({"event": "say", "host": "ops", "text": f"interrupted; {text}"})
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    if not first:
        for pid, worker in list(found.working.items()):
            if processes.alive(pid, worker.start):
                with suppress(ProcessLookupError):  # it ended this moment
                    os.kill(pid, signal.SIGTERM)
