"""Starts the two long-lived processes of a sandbox and waits until they answer."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import ops
from ops.errors import HostError
from ops.sandbox.address import Claim
from ops.sandbox.environment import environment
from ops.sandbox.layout import Daemon, Layout, Record
from ops.sandbox.processes import alive, daemon

READY_WITHIN_S = 15.0


def start_sshd(layout: Layout, claim: Claim) -> Daemon:
    """Start the SSH server on the claimed address; it inherits both sockets of the claim."""
    fds = (claim.listener.fileno(), claim.owner.fileno())
    argv = [sys.executable, "-P", "-m", "ops.sandbox.sshd", str(layout.folder), *(str(fd) for fd in fds)]
    with_package = {**environment(layout), "PYTHONPATH": str(Path(str(ops.__file__)).parents[1])}
    return detach(argv, with_package, layout.log / "sshd.log", layout.home, fds)


def start_supervisord(layout: Layout) -> Daemon:
    socket_path = layout.socket
    if socket_path.parent != layout.folder:
        _make_private(socket_path.parent)
    # supervisord sleeps 0.3 s over a stale socket; nobody listens on it, or it would not be started.
    socket_path.unlink(missing_ok=True)
    argv = [sys.executable, "-P", "-m", "supervisor.supervisord", "-n", "-c", str(layout.supervisord_conf)]
    return detach(argv, environment(layout), layout.log / "supervisord.out", layout.home)


def wait_ready(layout: Layout, record: Record) -> None:
    """Wait until SSH greets and supervisord accepts. Raises: HostError with the log's last lines."""
    _wait(record.sshd, lambda: _greets(record.address, record.ssh_port), "its SSH server", layout.log / "sshd.log")
    _wait(record.supervisord, lambda: _accepts(layout.socket), "supervisord", layout.log / "supervisord.out")


def detach(argv: Sequence[str], variables: Mapping[str, str], log: Path, cwd: Path, fds: Sequence[int] = ()) -> Daemon:
    """Start a process that outlives this one: own session, parent init, output appended to `log`.

    Raises: HostError when it ends at once.
    """
    script = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'
    started = subprocess.run(
        ["/bin/sh", "-c", script, "sh", str(log), *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=dict(variables),
        cwd=cwd,
        pass_fds=fds,
        start_new_session=True,
        check=True,
    )
    found = daemon(int(started.stdout))
    if found is None:
        raise HostError(f"'{' '.join(argv)}' ended at once: {tail(log)}")
    return found


def tail(log: Path, lines: int = 5) -> str:
    try:
        return " | ".join(log.read_text(errors="replace").splitlines()[-lines:]) or f"{log} is empty"
    except OSError as error:
        return f"no log: {error}"


def _wait(process: Daemon | None, ready: Callable[[], bool], what: str, log: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while not ready():
        if not alive(process):
            raise HostError(f"the sandbox is not up: {what} ended while starting: {tail(log)}", hint=f"see {log}")
        if time.monotonic() > deadline:
            raise HostError(
                f"the sandbox is not up: {what} does not answer after {READY_WITHIN_S:g} s: {tail(log)}",
                hint=f"see {log}; start over with: ops sandbox down && ops sandbox up",
            )
        time.sleep(0.01)


def _greets(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=1.0) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return False
        return True


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise HostError(f"{folder} belongs to somebody else or is open to others; supervisord's socket cannot be there")
