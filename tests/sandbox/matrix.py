"""The fault matrix: where a fault strikes, how, how that is proven from outside, and what must be true afterwards.

Nothing of `ops` is patched: the client is a process, the host is reached over SSH, faults are signals, cut sockets, a
full file system and killed hosts. A point is reached by following the host's journal and engine log from outside and
freezing the client (SIGSTOP) when the line of that point appears, so that the flow stands where the fault strikes.
"""

import contextlib
import errno
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rig import Client, Rig, crowded, environ, until

from ops.sandbox import processes
from ops.sandbox.processes import Process

FAULTS = ("client-kill", "ssh-cut", "engine-crash", "engine-hang", "disk-full", "reboot")
FORWARD = ("stage", "arm", "drain", "stop", "activate", "start", "load", "gate", "gated", "confirm", "admit", "prune")
BACK = ("rearm", "stop", "activate", "start", "gate", "confirm", "admit")
POINTS = (*FORWARD, *(f"back-{kind}" for kind in BACK))
QUICK_POINTS = (
    *("stage", "arm", "drain", "stop", "activate", "start", "load", "gate", "confirm", "admit"),
    *("back-stop", "back-gate"),
)
COMMITTED = ("admit", "prune")
UNTOUCHED = ("stage", "arm")
PROVEN = ("gated", "confirm", "admit", "prune")
NEW_ENGINE = ("activate", "start", "load", "gate")
LAST_GOOD_ENGINE = ("back-activate", "back-start", "back-gate")
PROFILES = ("good", "next", "third")
STEPS = {"baseline": 0, "good": 2, "next": 3, "third": 1}
SSH_CUT_S = 2.0
ATTEMPTS = 5


class NotStruck(Exception):
    """The flow had left the point before the fault could strike."""


@dataclass(frozen=True)
class Cell:
    point: str
    fault: str

    @property
    def name(self) -> str:
        return f"{self.point}-{self.fault}"

    @property
    def going_back(self) -> bool:
        return self.point.startswith("back-")

    @property
    def kind(self) -> str:
        return self.point.removeprefix("back-")


@dataclass
class Report:
    """What a cell showed: evidence that the fault struck, the client's exit code, who served then."""

    cell: Cell
    evidence: list[str] = field(default_factory=list)
    code: int | None = None
    served: str = ""
    way: str = ""
    seconds: float = 0.0
    error: str = ""


def allowed_codes(cell: Cell) -> tuple[int, ...]:
    """How the client may end. Exit 4 is only for a last good release that is struck itself while it is proven."""
    point = cell.point
    match cell.fault:
        case "client-kill":
            return (-signal.SIGKILL,)
        case "ssh-cut":
            return (3,) if cell.going_back else (0,)
        case "disk-full":
            # While the last good release is being proven, a full disk may keep its engine from answering (its log).
            if point in LAST_GOOD_ENGINE:
                return (3, 4)
            return (3,) if cell.going_back else (0, 3)
        case "reboot":
            if point in UNTOUCHED:
                return (0, 3)
            return (0,) if point in COMMITTED else (3,)
        case _:
            if cell.going_back:
                return (4,) if point in LAST_GOOD_ENGINE else (3,)
            return (3,) if point in NEW_ENGINE else (0,)


def cells(points: tuple[str, ...]) -> list[Cell]:
    return [Cell(point, fault) for point in points for fault in FAULTS]


def play(rig: Rig, cell: Cell, *, break_lock: bool, checks: Sequence[str] = ("deploy", "rollback")) -> Report:
    """Run one cell on a host that serves a good release. Raises: AssertionError naming what is not as promised."""
    begun = time.monotonic()
    report = Report(cell)
    for attempt in range(ATTEMPTS):
        try:
            _attempt(rig, cell, report, break_lock, checks)
        except NotStruck as missed:
            report.evidence.append(f"attempt {attempt + 1} came too late: {missed}")
            rig.box.clear_faults()
            continue
        report.seconds = round(time.monotonic() - begun, 1)
        return report
    raise AssertionError(f"the fault never struck at its point: {report.evidence}")


def _attempt(rig: Rig, cell: Cell, report: Report, break_lock: bool, checks: Sequence[str]) -> None:
    old = rig.link("current")
    assert old is not None
    new_profile, other = [p for p in PROFILES if not old.startswith(f"{p}-")][:2]
    events_before = len(rig.journal())
    follower = Follower(rig)
    if cell.going_back:
        rig.box.fault("env-lost-in-ranks")
    for profile in PROFILES:
        brief = profile == new_profile and cell.fault == "client-kill"
        rig.choose_timeouts(profile, "brief" if brief else "usual")
    client = rig.start("deploy", "--profile", new_profile)
    try:
        run = _reach(rig, cell, client, follower)
        strike(rig, cell, client, old, report)
    except NotStruck:
        client.signal(signal.SIGCONT)
        client.wait(90.0)
        raise
    finally:
        client.signal(signal.SIGCONT)
    truth(rig, "right after the fault", cut=cell.fault == "ssh-cut")
    done = client.wait(90.0)
    report.code = done.code
    rig.last_stderr = done.stderr + done.stdout
    assert done.code in allowed_codes(cell), f"exit {done.code}, allowed are {allowed_codes(cell)}"
    new = next(e["release"] for e in rig.journal()[events_before:] if e["event"] == "run-started")
    truth(rig, "when the client had ended", cut=cell.fault == "ssh-cut")
    with _cleared(rig, cell):
        _settled(rig, cell, run, report, break_lock, done.stderr)
        report.served = _served(rig, cell, done.code, old, new)
    for check in checks:
        NEXT[check](rig, other)
        check_journal(rig.journal())
    no_orphan(rig)
    assert not (rig.instance / "lock").exists()


def _next_deploy(rig: Rig, profile: str) -> None:
    done = rig.deploy(profile, within_s=90.0)
    assert done.code == 0, f"the next deploy does not work: {done.code}\n{done.stderr}\n{done.stdout}"
    assert (rig.link("current") or "").startswith(f"{profile}-") and _ready(rig)


def _next_rollback(rig: Rig, profile: str) -> None:
    before = rig.link("current")
    done = rig.ops("rollback", within_s=90.0)
    assert done.code == 0, f"the next rollback does not work: {done.code}\n{done.stderr}\n{done.stdout}"
    assert rig.link("current") != before and _ready(rig)


NEXT = {"deploy": _next_deploy, "rollback": _next_rollback}


# Reaching a point


class Follower:
    """The journal's lines as they come, read from outside without parsing what was seen before."""

    def __init__(self, rig: Rig) -> None:
        self._path = rig.instance / "journal.jsonl"
        self._offset = self._path.stat().st_size
        self._logs = rig.instance / "logs"
        self._log_sizes = {log.name: log.stat().st_size for log in self._logs.glob("*.log")}
        self.events: list[dict[str, Any]] = []

    def look(self) -> list[dict[str, Any]]:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self.events += [json.loads(line) for line in whole.splitlines() if line]
        return self.events

    def log(self, release: str) -> str:
        """What the engine of `release` wrote since this began: an earlier start's lines prove nothing."""
        try:
            with (self._logs / f"{release}.log").open("rb") as file:
                file.seek(self._log_sizes.get(f"{release}.log", 0))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""


def _reach(rig: Rig, cell: Cell, client: Client, follower: Follower) -> str:
    """Freeze the client when the line of the point appears. Returns the run's id.

    Some steps take a millisecond, so from the step before on the client runs in slices: a moment of work, frozen for a
    look at the journal, and so on.
    """
    wanted = _line_of(cell)
    deadline = time.monotonic() + 60.0 * crowded()
    near = _kinds_before(cell)
    pid = client.process.pid
    while time.monotonic() < deadline:
        if not client.running():
            done = client.wait()
            raise AssertionError(f"the client ended before {cell.point}: {done.code}\n{done.stderr}\n{done.stdout}")
        events = follower.look()
        sliced = any(_is_step(event, *near) for event in events)
        if sliced:
            client.signal(signal.SIGSTOP)
            _wait_stopped(pid)
            events = follower.look()
        line = wanted(follower, events)
        if line is not None:
            client.signal(signal.SIGSTOP)
            _wait_stopped(pid)
            return str(line["run"])
        if sliced:
            client.signal(signal.SIGCONT)
        time.sleep(0.001)
    client.signal(signal.SIGCONT)
    raise AssertionError(f"the point {cell.point} was not reached within a minute")


def _is_step(event: dict[str, Any], kind: str, recovery: bool) -> bool:
    if kind == "run-started":
        return bool(event["event"] == kind)
    return bool(event["event"] == "step-started" and (event["step"]["kind"], event["recovery"]) == (kind, recovery))


def _kinds_before(cell: Cell) -> tuple[str, bool]:
    """The step whose start means that the point is near."""
    forward = ("run-started", *(kind for kind in FORWARD if kind not in ("load", "gated")))
    if cell.point in ("load", "gated"):
        return {"load": "start", "gated": "gate"}[cell.point], False
    if cell.going_back:
        place = BACK.index(cell.kind)
        return (BACK[place - 1], True) if place else ("gate", False)
    return forward[forward.index(cell.kind) - 1], False


def _line_of(cell: Cell) -> Callable[[Follower, list[dict[str, Any]]], dict[str, Any] | None]:
    def step(follower: Follower, events: list[dict[str, Any]]) -> dict[str, Any] | None:
        return next((e for e in events if _is_step(e, cell.kind, cell.going_back)), None)

    def gated(follower: Follower, events: list[dict[str, Any]]) -> dict[str, Any] | None:
        return next((e for e in events if e["event"] == "gated"), None)

    def load(follower: Follower, events: list[dict[str, Any]]) -> dict[str, Any] | None:
        event = next((e for e in events if _is_step(e, "start", False)), None)
        if event is None or "Load weight begin" not in follower.log(event["step"]["args"]["release"]):
            return None
        return event

    return {"gated": gated, "load": load}.get(cell.point, step)


def _wait_stopped(pid: int) -> None:
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        try:
            if _stopped(pid):
                return
        except FileNotFoundError:
            return
    raise AssertionError(f"the client {pid} does not freeze")


def _stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith(("T", "Z"))


def _still_there(rig: Rig, cell: Cell) -> None:
    """The flow has not begun another step since. Raises: NotStruck."""
    steps = [e for e in rig.journal() if e["event"] == "step-started"]
    kind = {"load": "start", "gated": "gate"}.get(cell.point, cell.kind)
    newest = (steps[-1]["step"]["kind"], steps[-1]["recovery"])
    if newest != (kind, cell.going_back):
        raise NotStruck(f"it stands at {newest}")
    committed = [e for e in rig.journal() if e["event"] == "committed" and e["run"] == steps[-1]["run"]]
    if kind == "confirm" and committed:
        raise NotStruck("it is committed already")


# Striking


def strike(rig: Rig, cell: Cell, client: Client, old: str, report: Report) -> None:
    """Let the fault strike, with the client frozen at the point, and prove from outside that it did."""
    _still_there(rig, cell)
    STRIKES[cell.fault](rig, cell, client, old, report.evidence)
    _still_there(rig, cell)


def _client_kill(rig: Rig, cell: Cell, client: Client, old: str, evidence: list[str]) -> None:
    pid = client.process.pid
    os.kill(pid, signal.SIGKILL)
    client.process.wait(10)
    assert client.process.returncode == -signal.SIGKILL and not Path(f"/proc/{pid}").exists()
    evidence.append("the client's process is gone (SIGKILL)")


def _ssh_cut(rig: Rig, cell: Cell, client: Client, old: str, evidence: list[str]) -> None:
    before = ssh_connections(rig)
    assert before, "the client has no SSH connection that could be cut"
    rig.box.cut_ssh(min(10.0, SSH_CUT_S * crowded()))
    until(lambda: not (ssh_connections(rig) & before), "every connection is cut", within_s=1.0, every_s=0.005)
    with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection((rig.box.address, rig.box.ssh_port), timeout=1).close()
        raise AssertionError("SSH still answers")
    evidence.append(f"{len(before)} SSH connections gone from the kernel's table, new ones refused")


def ssh_connections(rig: Rig) -> set[str]:
    """Inodes of the established connections to the host's SSH port."""
    wanted = "".join(f"{int(part):02X}" for part in reversed(rig.box.address.split("."))) + f":{rig.box.ssh_port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[9] for row in rows if row[2] == wanted and row[3] == "01"}


def _struck_engines(rig: Rig, cell: Cell) -> list[Process]:
    """The engine processes that a crash or hang at this point means; none where nothing runs."""
    if cell.kind in ("activate", "start"):
        return []
    deadline = time.monotonic() + 3.0
    while not (found := rig.engine_processes()):
        if time.monotonic() > deadline:
            raise NotStruck("no engine process is left to strike")
        time.sleep(0.005)
    return found


def _engine_crash(rig: Rig, cell: Cell, client: Client, old: str, evidence: list[str]) -> None:
    _engine_fault(rig, cell, old, evidence, signal.SIGKILL, "crash-during-load")


def _engine_hang(rig: Rig, cell: Cell, client: Client, old: str, evidence: list[str]) -> None:
    _engine_fault(rig, cell, old, evidence, signal.SIGSTOP, "hang-during-load")


def _engine_fault(rig: Rig, cell: Cell, old: str, evidence: list[str], number: int, preset: str) -> None:
    engines = _struck_engines(rig, cell)
    if not engines:
        on = old if cell.going_back else "next"
        rig.box.fault(preset, on=on)
        rig.expect_in_log(preset, on)
        evidence.append(f"nothing runs here: the next start is struck by {preset} (proven by its log)")
        return
    for process in engines:
        processes.kill(process, number)
    if number == signal.SIGKILL:
        until(lambda: not any(processes.starttime_of(p.pid) == p.starttime for p in engines), "they are dead", 5.0)
        evidence.append(f"{len(engines)} engine processes killed (process table)")
        return

    def stopped() -> list[Process]:
        alive = [p for p in engines if processes.starttime_of(p.pid) == p.starttime]
        return alive if alive and all(_stopped(p.pid) for p in alive) else []

    still = until(stopped, "the engine's processes are stopped", within_s=5.0)
    evidence.append(f"{len(still)} engine processes in state T")


def _disk_full(rig: Rig, cell: Cell, client: Client, old: str, evidence: list[str]) -> None:
    rig.box.fault("disk-full")
    assert os.statvfs(rig.box.root).f_bavail == 0
    probe = rig.box.root / "probe"
    try:
        probe.write_bytes(b"x" * 8192)
    except OSError as error:
        assert error.errno == errno.ENOSPC
        evidence.append("0 blocks free; a write fails with ENOSPC")
    else:
        raise AssertionError("the disk is not full")
    finally:
        probe.unlink(missing_ok=True)


def _reboot(rig: Rig, cell: Cell, client: Client, old: str, evidence: list[str]) -> None:
    before = {(p.pid, p.starttime) for p in rig.box.processes()}
    rig.box.reboot(down_s=0.2)
    after = {(p.pid, p.starttime) for p in rig.box.processes()}
    assert before and not before & after, f"these survived the reboot: {before & after}"
    evidence.append(f"all {len(before)} processes of the host are gone, others run")


STRIKES: dict[str, Callable[[Rig, Cell, Client, str, list[str]], None]] = {
    "client-kill": _client_kill,
    "ssh-cut": _ssh_cut,
    "engine-crash": _engine_crash,
    "engine-hang": _engine_hang,
    "disk-full": _disk_full,
    "reboot": _reboot,
}

# What must be true


def truth(rig: Rig, when: str, *, cut: bool = False) -> None:
    """`ops status` says what can be seen from outside; a host in motion may be seen at any moment of its way.

    cut: SSH may not answer, so status may not know.
    """
    seen = outside(rig)
    client = rig.start("status")
    while client.running():
        seen |= outside(rig)
        time.sleep(0.05)
    done = client.wait(30.0)
    seen |= outside(rig)
    if done.host.get("state") == "unknown":
        assert done.code == 2 and cut, f"{when}: status does not know: {done.stdout}"
        return
    assert done.code == 0, f"{when}: status fails: {done.stderr}"
    host = done.host
    if len(seen) > 1:
        seen |= {"starting", "down"}
    assert host["state"] in seen, f"{when}: status says {host['state']}, seen from outside: {seen}"
    lock = host["lock"]
    assert lock is None or lock["meaning"], f"{when}: the lock is not explained"


def outside(rig: Rig) -> set[str]:
    """The states that the host may truly be in, from files, sockets and the process table."""
    guard = rig.instance / "guard"
    if _pending(rig) and not (guard / "confirmed").exists():
        return {"pending"}
    current = rig.link("current")
    if current is None:
        return {"empty"}
    releases = {environ(p.pid).get("OPS_RELEASE") for p in rig.engine_processes()} - {None}
    if releases - {current}:
        return {"mixed", "starting", "down"}
    if not releases:
        return {"down", "starting"}
    if any(_stopped_or_gone(p.pid) for p in rig.engines()):
        return {"unresponsive", "starting"}
    return {"serving", "starting", "down", "unresponsive"} if not _ready(rig) else {"serving"}


def _stopped_or_gone(pid: int) -> bool:
    try:
        return _stopped(pid)
    except OSError:
        return True


def _ready(rig: Rig) -> bool:
    try:
        with socket.create_connection((rig.box.address, 8000), timeout=2) as connection:
            connection.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return b" 200 " in connection.recv(64)
    except OSError:
        return False


@contextlib.contextmanager
def _cleared(rig: Rig, cell: Cell) -> Iterator[None]:
    """The disk stays full while the run settles: that it settles then is the point. All else is over by now."""
    if cell.fault != "disk-full":
        rig.check_engine_fault()
        rig.box.clear_faults()
    yield
    rig.box.clear_faults()


def _settled(rig: Rig, cell: Cell, run: str, report: Report, break_lock: bool, stderr: str) -> None:
    """Whatever the client left pending is undone: by the guard, or at once by an operator who breaks the lock."""
    if not _pending(rig):
        report.way = "the client"
        return
    if cell.fault == "client-kill":
        refused = rig.ops("rollback", "--to", _last_good(rig))
        if refused.code == 0 and _host_ended(rig, run):
            report.way = "the guard"  # it was due while the command was on its way
            return
        assert refused.code == 2, f"a command onto a dead run's pending release: {refused.code}\n{refused.stderr}"
        assert "died while" in refused.stdout and "--break-lock" in refused.stdout, refused.stdout
    if break_lock or report.code == 4:
        report.way = "--break-lock" if break_lock else "the next command"
        undone = rig.ops("rollback", "--to", _last_good(rig), "--break-lock", within_s=90.0)
        assert undone.code == 0, f"it could not be undone by hand: {undone.code}\n{undone.stderr}\n{undone.stdout}"
        return
    report.way = "the guard"
    until(lambda: not _pending(rig), "the guard undoes it", within_s=180.0, every_s=0.05)
    assert _host_ended(rig, run), f"the guard wrote nothing about run {run}"
    assert not (rig.instance / "lock").exists(), "the guard left the dead run's lock"


def _host_ended(rig: Rig, run: str) -> bool:
    return any(e.get("run") == run and e["event"] in ("restored", "confirmed-late") for e in rig.journal())


def _pending(rig: Rig) -> bool:
    return any((rig.instance / "guard" / name).exists() for name in ("armed", "armed.client", "fired"))


def _last_good(rig: Rig) -> str:
    found = rig.link("last-good")
    assert found is not None
    return found


def _served(rig: Rig, cell: Cell, code: int, old: str, new: str) -> str:
    """The host serves the old or the new release, the one that the exit code and the journal promise."""
    current = rig.link("current")
    committed = new in [e["release"] for e in rig.journal()[-60:] if e["event"] == "committed"]
    assert current in (old, new), f"{current} is neither the last good nor the new release"
    if code == 0:
        assert current == new and committed, f"exit 0, but {current} is current (committed: {committed})"
    if code in (3, 130):
        assert current == old, f"exit {code}, but {current} is current"
    if cell.point not in COMMITTED and not committed:
        assert current == old, f"nothing was confirmed, but {current} is current"
    assert rig.link("last-good") == current and rig.link("pending") is None
    hangs = cell.fault == "engine-hang" and cell.kind in PROVEN  # nobody looks at it again
    if not hangs:
        until(lambda: _ready(rig), f"{current} serves", within_s=30.0, every_s=0.05)
        assert rig.status()["state"] == "serving"
    no_orphan(rig)
    return "new" if current == new else "old"


def no_orphan(rig: Rig) -> None:
    """One server, every process of it from the current release, and nobody else holds GPU memory."""
    until(lambda: _one_server(rig) is None, f"one whole server: {_one_server(rig)}", within_s=10.0, every_s=0.1)


def _one_server(rig: Rig) -> str | None:
    current = rig.link("current") or ""
    launchers, everyone = rig.engines(), rig.engine_processes()
    if len(launchers) != 1:
        return f"{len(launchers)} launchers: {[p.title[:80] for p in launchers]}"
    releases = {environ(p.pid).get("OPS_RELEASE") for p in everyone}
    if releases != {current}:
        return f"processes of {releases}, current is {current}"
    steps = STEPS[current.rpartition("-")[0]]
    if steps and f"--speculative-num-steps {steps} " not in f"{launchers[0].title} ":
        return f"the arguments are not those of {current}: {launchers[0].title}"
    holders = {holder.pid for holder in rig.box.gpu_holders()}
    if not holders <= {p.pid for p in everyone} or not holders:
        return f"GPU memory is held by {holders}, the engine's processes are {[p.pid for p in everyone]}"
    return None


def check_journal(events: list[dict[str, Any]], *, last_open: bool = False) -> None:
    """No hole: numbered steps without a gap, none left open by a run that ended itself, and every run ended.

    last_open: the newest run may still be open (its client was killed, and no command came since).
    """
    runs: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        if "run" in event:
            runs.setdefault(event["run"], []).append(event)
    newest = next(reversed(runs), None)
    for run, own in runs.items():
        if {event["event"] for event in own} == {"gated"}:
            continue  # `ops gate` looks and changes nothing
        started = [e["seq"] for e in own if e["event"] == "step-started"]
        assert started == list(range(1, len(started) + 1)), f"run {run} has the steps {started}"
        closed = [e["seq"] for e in own if e["event"] in ("step-done", "step-failed")]
        ended = [e for e in own if e["event"] in ("run-ended", "restored", "confirmed-late")]
        if not ended and last_open and run == newest:
            continue
        assert ended, f"run {run} was never ended: {[(e['event'], e.get('step', {}).get('kind')) for e in own]}"
        by_itself = ended[0]["event"] == "run-ended" and "by" not in ended[0]
        still_open = sorted(set(started) - set(closed))
        if by_itself and ended[0]["outcome"] == "done":
            assert not still_open, f"run {run} is done with open steps {still_open}"
        assert len(still_open) <= 2, f"run {run} left the steps {still_open} open"
