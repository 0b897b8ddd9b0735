"""A project with lab-speed profiles, its sandbox host, and `ops` as a real process: shared by the transaction tests."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ops.sandbox.host import Sandbox, all_sandboxes
from ops.sandbox.processes import Process

REPOSITORY = Path(__file__).resolve().parents[2]
TIME_SCALE = 50.0
LOAD_S = 25.0
TIMEOUTS = {
    "load_timeout_s": 600,
    "drain_timeout_s": 300,
    "stop_timeout_s": 100,
    "gate_timeout_s": 1500,
    "guard_margin_s": 500,
}
"""Engine seconds: at 50 of them a wall second the guard waits a minute."""
BRIEF = {
    "load_timeout_s": 350,
    "drain_timeout_s": 100,
    "stop_timeout_s": 100,
    "gate_timeout_s": 250,
    "guard_margin_s": 100,
}
"""The same for a client that is going to be killed: 18 wall seconds."""
SKIPPED = ("wiring", "effective-config", "agreement", "acceptance", "long-context", "soak", "speed")
WHY = "these tests are about the transaction, not about figures"


def crowded() -> float:
    """How many runnable processes share a core here, at least 1: time limits are meant for a machine of one's own."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def stretched(timeouts: Mapping[str, float]) -> dict[str, float]:
    """Timeouts for this moment: an engine's start takes as long as the machine lets it, whatever its time scale is."""
    factor = min(4.0, crowded())
    return {name: round(seconds * factor) for name, seconds in timeouts.items()}


def lay_down_project(folder: Path, *, timeouts: dict[str, float] | None = None) -> Path:
    """The shipped envs/ with profiles `good`, `next`, `third` (speculative) and `baseline`, all small and quick."""
    shutil.copytree(REPOSITORY / "envs", folder / "envs")
    profiles = folder / "envs" / "profiles"
    base = yaml.safe_load((profiles / "baseline.yaml").read_text())
    base["engine"]["tensor_parallel"] = 2
    base["timeouts"] = stretched(TIMEOUTS | (timeouts or {}))
    base["gates"] = {"skip": dict.fromkeys(SKIPPED, WHY), "generation": {"max_tokens": 16}}
    base["traffic"]["concurrency"] = [1]
    (profiles / "baseline.yaml").write_text(yaml.safe_dump(base))
    for name, steps in (("good", 2), ("next", 3), ("third", 1)):
        lab = {
            "extends": "eagle3-2step",
            "speculation": {"steps": steps, "draft_tokens": steps + 1},
        }
        (profiles / f"{name}.yaml").write_text(yaml.safe_dump(lab))
    return folder


@dataclass
class Done:
    """An `ops` process that ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stdout)
        return found

    @property
    def host(self) -> dict[str, Any]:
        found: dict[str, Any] = self.document["hosts"][0]
        return found


class Client:
    """A running `ops` command."""

    def __init__(self, argv: list[str], cwd: Path) -> None:
        self._begun = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ops", *argv],
            cwd=cwd,
            env=_environment(cwd),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait(self, within_s: float = 120.0) -> Done:
        within_s *= crowded()
        try:
            out, error = self.process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, error = self.process.communicate()
            raise AssertionError(f"ops did not end within {within_s} s:\n{error}\n{out}") from None
        return Done(self.process.returncode, out, error, time.monotonic() - self._begun)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def running(self) -> bool:
        return self.process.poll() is None


def _environment(project: Path) -> dict[str, str]:
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
    return kept | {"OPS_PROJECT": str(project), "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass
class Rig:
    """One project and its host."""

    project: Path
    box: Sandbox
    clients: list[Client] = field(default_factory=list)
    last_stderr: str = ""
    expected_in_log: tuple[str, str] | None = None
    logged_before: dict[str, int] = field(default_factory=dict)

    @property
    def instance(self) -> Path:
        return self.box.root / "default"

    def start(self, *argv: str) -> Client:
        client = Client([*argv, "--host", self.box.name, "--json"], self.project)
        self.clients.append(client)
        return client

    def ops(self, *argv: str, within_s: float = 120.0) -> Done:
        return self.start(*argv).wait(within_s)

    def deploy(self, profile: str, *argv: str, within_s: float = 120.0) -> Done:
        return self.ops("deploy", "--profile", profile, *argv, within_s=within_s)

    def status(self) -> dict[str, Any]:
        done = self.ops("status")
        assert done.code == 0, done.stderr
        return done.host

    def choose_timeouts(self, profile: str, timing: str) -> None:
        """How long the guard waits for a release of `profile`: `brief` (it will have to act) or `usual`."""
        file = self.project / "envs" / "profiles" / f"{profile}.yaml"
        lab = yaml.safe_load(file.read_text())
        lab["timeouts"] = stretched(BRIEF if timing == "brief" else TIMEOUTS)
        file.write_text(yaml.safe_dump(lab))

    def expect_in_log(self, preset: str, on: str) -> None:
        """The fault `preset` was set for a start to come, of the release `on` or of the "next"; remember how long every
        log is."""
        self.expected_in_log = (preset, on)
        self.logged_before = {log.stem: log.stat().st_size for log in (self.instance / "logs").glob("*.log")}

    def check_engine_fault(self) -> None:
        """A fault that was set for the next start has struck: its release's log shows how it ended or stands."""
        if self.expected_in_log is None:
            return
        preset, on = self.expected_in_log
        self.expected_in_log = None
        release = on
        if on == "next":
            claimed = [f for f in self.box.state().faults if f.get("claimed_by") and f["name"] == preset]
            assert claimed, f"{preset} struck nobody: {self.box.state().faults}"
            release = claimed[0]["claimed_by"]
        log = (
            (self.instance / "logs" / f"{release}.log")
            .read_bytes()[self.logged_before.get(release, 0) :]
            .decode(errors="replace")
        )
        if preset == "hang-during-load":
            last = log.rpartition("== ops start ")[2]
            assert "Load weight end" in last and "ready to roll" not in last, f"{release} does not hang in its load"
        else:
            assert "Received sigquit from a child process" in log, f"{preset} left no trace in the log of {release}"

    def close(self) -> None:
        for client in self.clients:
            if client.running():
                client.signal(signal.SIGCONT)
                client.process.kill()
                client.process.communicate()

    # What can be seen from outside

    def journal(self) -> list[dict[str, Any]]:
        return journal_of(self.instance)

    def link(self, name: str) -> str | None:
        path = self.instance / name
        return path.readlink().name if path.is_symlink() else None

    def engines(self) -> list[Process]:
        """Launchers of the engine that live."""
        return [p for p in self.box.processes() if "sglang.launch_server" in p.title]

    def engine_processes(self) -> list[Process]:
        """Launchers and ranks."""
        return [p for p in self.box.processes() if "sglang.launch_server" in p.title or "sglang::" in p.title]


def journal_of(instance: Path) -> list[dict[str, Any]]:
    """The whole lines of an instance's journal."""
    try:
        text = (instance / "journal.jsonl").read_text()
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\n") + 1]  # what is being written at this moment comes with the next look
    return [json.loads(line) for line in whole.splitlines() if line]


def environ(pid: int) -> dict[str, str]:
    """The environment of a live process; empty when it is gone."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    return dict(entry.decode(errors="replace").split("=", 1) for entry in raw.split(b"\0") if b"=" in entry)


@contextmanager
def rig(folder: Path, name: str, **settings: Any) -> Iterator[Rig]:
    """A project with one sandbox host in it, brought down at the end."""
    timeouts = settings.pop("timeouts", None)
    project = lay_down_project(folder, timeouts=timeouts)
    wishes: dict[str, Any] = {"time_scale": TIME_SCALE, "noise": "off", "load_s": LOAD_S} | settings
    try:
        box = Sandbox.up(name, project=project, **wishes)
        shutil.copy(box.inventory, project / "envs" / "hosts.yml")
        found = Rig(project, box)
        try:
            yield found
        finally:
            found.close()
    finally:
        bring_down(project)


def bring_down(project: Path) -> None:
    """End every sandbox of a project, also one that came up only in part."""
    for box in all_sandboxes(project):
        box.down()


def until(condition: Callable[[], Any], what: str, within_s: float = 30.0, every_s: float = 0.005) -> Any:
    """Wait for something to become true, and return it. `within_s` is for a machine of one's own."""
    within_s *= crowded()
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(every_s)
    return value
