"""Long-lived processes of the lab on this machine (emulators, fleet hosts), found again by a later `down`."""

import os
import signal
import time
from pathlib import Path

from .machine import CommandFailed


def record(pid_file: Path, pid: int) -> None:
    """Write down a process with its start time, so that a reused pid is never taken for it."""
    pid_file.write_text(f"{pid} {_start_time(pid)}\n")


def is_alive(pid_file: Path) -> bool:
    """Say whether the recorded process still exists (a zombie does not)."""
    return _recorded_pid(pid_file) is not None


def kill_recorded(pid_file: Path, *, gone_within_s: float = 10) -> bool:
    """Kill the recorded process at once and wait until it is gone; say whether it was alive.

    Raises: CommandFailed when it is still there after `gone_within_s`.
    """
    pid = _recorded_pid(pid_file)
    if pid is None:
        return False
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + gone_within_s
    while is_alive(pid_file):
        if time.monotonic() > deadline:
            raise CommandFailed(f"pid {pid} ({pid_file}) is still there {gone_within_s} s after SIGKILL")
        time.sleep(0.01)
    return True


def _recorded_pid(pid_file: Path) -> int | None:
    try:
        pid, start_time = pid_file.read_text().split()
    except FileNotFoundError:
        return None
    return int(pid) if _start_time(int(pid)) == start_time else None


def _start_time(pid: int) -> str | None:
    """Return field 22 of /proc/<pid>/stat, None when the process is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else fields[19]
