"""Which processes belong to a sandbox, seen from outside, and how they are ended.

Invariant: a process is only ever signalled while its start time is the one that was seen, and only when it
carries the sandbox's marker or descends from a process that does.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ops.errors import HostError
from ops.sandbox.layout import MARKER, Daemon


@dataclass(frozen=True)
class Process:
    """One live process. `starttime` in clock ticks since boot; `title` is its command line as `ps` shows it."""

    pid: int
    starttime: int
    ppid: int
    session: int
    title: str
    blank_environment: bool
    marked: bool


def starttime_of(pid: int) -> int | None:
    """Start time of a live process; None when there is none (a zombie is none)."""
    stat = _stat(pid)
    return stat[2] if stat else None


def alive(daemon: Daemon | None) -> bool:
    return daemon is not None and starttime_of(daemon.pid) == daemon.starttime


def daemon(pid: int) -> Daemon | None:
    starttime = starttime_of(pid)
    return Daemon(pid=pid, starttime=starttime) if starttime is not None else None


def members(folder: Path, gpu_holders: Iterable[Daemon] = ()) -> list[Process]:
    """Every live process of the sandbox in `folder`, oldest first, without the caller.

    A member carries the marker, or is a child of a member, or is in the session of one. Engine ranks may blank
    their environment by setting a title; one whose parents are dead is known by its entry for GPU memory
    (`gpu_holders`), its working folder or its open files.
    """
    seen = {process.pid: process for process in _all(folder)}
    holders = {(holder.pid, holder.starttime) for holder in gpu_holders}
    found = {
        pid
        for pid, process in seen.items()
        if process.marked or (process.blank_environment and ((pid, process.starttime) in holders or _uses(pid, folder)))
    }
    grown = True
    while grown:
        sessions = {seen[pid].session for pid in found}
        more = {
            pid
            for pid, process in seen.items()
            if pid not in found and (process.ppid in found or process.session in sessions)
        }
        found |= more
        grown = bool(more)
    found.discard(os.getpid())
    return sorted((seen[pid] for pid in found), key=lambda process: (process.starttime, process.pid))


def in_sessions(sessions: Iterable[int]) -> list[Process]:
    """Every live process of the given sessions."""
    wanted = set(sessions)
    return [process for process in _all(None) if process.session in wanted]


def kill(process: Process | Daemon, signum: int = signal.SIGKILL) -> None:
    """Signal exactly this process; nothing happens when it is gone or its pid is someone else's now."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if starttime_of(process.pid) == process.starttime:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signum)
    finally:
        os.close(handle)


def kill_members(folder: Path, gpu_holders: Iterable[Daemon] = (), *, within_s: float = 10.0) -> int:
    """SIGKILL every process of the sandbox until none is left; returns how many were hit.

    Raises: HostError naming what survived `within_s`.
    """
    holders = list(gpu_holders)
    deadline = time.monotonic() + within_s
    hit: set[tuple[int, int]] = set()
    while living := members(folder, holders):
        if time.monotonic() > deadline:
            names = ", ".join(f"{process.pid} ({process.title[:60]})" for process in living[:5])
            raise HostError(
                f"{len(living)} processes of the sandbox in {folder} survive SIGKILL after {within_s:g} s: {names}",
                hint="a process in state D waits for the kernel; look at it with: ps -o pid,stat,wchan -p PID",
            )
        for process in living:
            kill(process)
            hit.add((process.pid, process.starttime))
        time.sleep(0.01)
    return len(hit)


def _all(folder: Path | None) -> Iterator[Process]:
    marker = f"{MARKER}={folder}".encode(errors="surrogateescape") if folder else b""
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        stat = _stat(pid)
        if stat is None:
            continue
        environment = _read(pid, "environ")
        yield Process(
            pid=pid,
            ppid=stat[0],
            session=stat[1],
            starttime=stat[2],
            title=_read(pid, "cmdline").rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace"),
            blank_environment=not environment.strip(b"\0"),
            marked=bool(marker) and marker in environment.split(b"\0"),
        )


def _stat(pid: int) -> tuple[int, int, int] | None:
    """(ppid, session, starttime), or None for no process or a dead one. Source: proc_pid_stat(5)."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[1]), int(fields[3]), int(fields[19])


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        # Gone, or another user's: neither can be a member that this user could end.
        return b""


def _uses(pid: int, folder: Path) -> bool:
    links = [Path(f"/proc/{pid}/cwd")]
    with contextlib.suppress(OSError):
        links += Path(f"/proc/{pid}/fd").iterdir()
    for link in links:
        with contextlib.suppress(OSError):
            if link.readlink().is_relative_to(folder):
                return True
    return False
