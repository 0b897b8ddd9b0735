"""A host over SSH: one connection a command, calls that survive a broken connection.

Host keys are always checked. Every agent verb may be repeated, so after a broken connection a call is simply made
again.
"""

import base64
import hashlib
import itertools
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fabric
import paramiko

from ops.errors import ConnectionLost, HostError, Refused, RemoteFailed, Unreachable
from ops.hosts.clock import HostClock
from ops.hosts.session import AgentError, CallTimedOut, ChannelClosed, Event, Session, command
from ops.model.inventory import HostSpec

_CONNECT_TIMEOUT_S = 10
_RECONNECT_S = 60.0
_BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 4.0)
_KEEPALIVE_S = 5
_SILENCE_S = 15
_STABLE_S = 10.0
"""A connection that lasted so long (wall seconds) was a good one: when it breaks, patience begins anew."""


class SshHost:
    """One host; `call` runs a verb of the agent there."""

    def __init__(self, spec: HostSpec, *, reconnect_s: float = _RECONNECT_S) -> None:
        self.spec = spec
        self.name = spec.name
        self.clock = HostClock(spec.time_scale)
        self._reconnect_s = reconnect_s
        self._lock = threading.Lock()
        self._connection: fabric.Connection | None = None
        self._session: Session | None = None

    def connect(self) -> None:
        """Connect and start the agent. Raises: Unreachable."""
        with self._lock:
            self._open()

    def call(
        self,
        verb: str,
        *,
        wait_s: float = 30.0,
        on_event: Callable[[Event], None] | None = None,
        on_reconnect: Callable[[str], None] | None = None,
        patience_s: float = 0.0,
        **args: Any,
    ) -> Any:
        """Run `verb` with `args` on the host; `wait_s` bounds the answer, wall time.

        After a broken connection the call is made again for `patience_s` (at least the host's reconnect time). A verb
        that follows a log from `log_offset` goes on where its last event ended: no line is lost or shown twice.

        Raises: Unreachable (never connected), ConnectionLost (broke and did not come back), RemoteFailed (the verb
        raised), HostError (no answer in time), Refused (a newer ops wrote what lies there).
        """
        lost_at: float | None = None
        back_at: float | None = None
        attempt = 0
        patience_s = max(patience_s, self._reconnect_s)

        def follow(event: Event) -> None:
            if "log_offset" in args and "offset" in event:
                args["log_offset"] = event["offset"]
            if on_event is not None:
                on_event(event)

        while True:
            session: Session | None = None
            try:
                with self._lock:
                    session = self._open()
                back_at = time.monotonic()
                if lost_at is not None and on_reconnect is not None:
                    on_reconnect(f"SSH is back after {back_at - lost_at:.0f} s")
                return session.call(verb, args, wait_s, follow)
            except AgentError as error:
                if error.code == "newer-version":
                    raise Refused(str(error), host=self.name) from error
                raise RemoteFailed(str(error), kind=error.kind, code=error.code, host=self.name) from error
            except CallTimedOut as error:
                raise HostError(str(error), host=self.name) from error
            except (ChannelClosed, Unreachable) as error:
                if lost_at is None and isinstance(error, Unreachable) and self._connection is None:
                    raise
                if lost_at is None or (back_at is not None and time.monotonic() - back_at > _STABLE_S):
                    lost_at, attempt = time.monotonic(), 0
                back_at = None
                self._drop(session)
                if time.monotonic() - lost_at > patience_s:
                    raise ConnectionLost(
                        f"the SSH connection broke and did not come back within {patience_s:.0f} s: {error}",
                        host=self.name,
                    ) from error
                if on_reconnect is not None and attempt == 0:
                    on_reconnect(f"SSH connection lost, trying to come back for {patience_s:.0f} s")
                time.sleep(_BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)])
                attempt += 1

    @contextmanager
    def fresh(self) -> Iterator["SshHost"]:
        """A second, new connection: proof that the host can still be reached by whoever comes next.

        Raises: ConnectionLost when none can be made within the reconnect time.
        """
        other = SshHost(self.spec, reconnect_s=self._reconnect_s)
        try:
            other._connect_patiently()
            yield other
        finally:
            other.close()

    def feed(self, words: tuple[str, ...], blocks: Iterable[bytes]) -> str:
        """Stream `blocks` to the standard input of a command on the host, over a channel of its own, as root where the
        inventory says `become`; returns what it printed.

        Raises: RemoteFailed when it fails, ConnectionLost when SSH breaks (nothing is repeated).
        """
        with self._lock:
            self._open()
            transport = self._connection.transport if self._connection else None
        if transport is None:
            raise ConnectionLost("there is no SSH connection", host=self.name)
        line = shlex.join((*(("sudo", "-n", "--") if self.spec.become else ()), *words))
        try:
            channel = transport.open_session(timeout=_CONNECT_TIMEOUT_S)
            channel.exec_command(f"/bin/sh -c {shlex.quote(f'exec {line} 2>&1')}")
            broke: OSError | None = None
            try:
                for block in blocks:
                    channel.sendall(block)
                channel.shutdown_write()
            except OSError as error:
                if not channel.exit_status_ready():
                    raise
                broke = error  # the command ended before it had read all; what it said tells why
            output = b"".join(iter(lambda: channel.recv(65536), b"")).decode(errors="replace")
            status = channel.recv_exit_status()
            if broke is not None and status <= 0:  # -1: SSH broke; 0: it succeeded on half of what it was to get
                raise broke
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise ConnectionLost(f"SSH broke while {words[0]} was fed: {error}", host=self.name) from error
        if status != 0:
            raise RemoteFailed(
                f"`{' '.join(words)}` failed there (exit {status}): {output.strip()[-500:]}",
                kind="feed",
                code="command-failed",
                host=self.name,
            )
        return output

    def _connect_patiently(self) -> None:
        deadline = time.monotonic() + self._reconnect_s
        for attempt in itertools.count():
            try:
                self.connect()
                return
            except Unreachable as error:
                if time.monotonic() > deadline:
                    raise ConnectionLost(
                        f"no new SSH connection within {self._reconnect_s:.0f} s: {error.message}", host=self.name
                    ) from error
                time.sleep(_BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)])

    def close(self) -> None:
        with self._lock:
            self._drop_locked(forget=True)

    def _drop(self, broken: Session | None) -> None:
        """Close the session that broke, unless another thread has replaced it by now."""
        with self._lock:
            if self._session is broken:
                self._drop_locked(forget=False)

    def _drop_locked(self, *, forget: bool) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._connection is not None:
            with suppress(OSError, EOFError):  # saying goodbye to who is gone
                self._connection.close()
            if forget:
                self._connection = None

    def _open(self) -> Session:
        if self._session is not None:
            return self._session
        connection = _connection(self.spec)
        try:
            connection.open()
            transport = connection.transport
            transport.set_keepalive(_KEEPALIVE_S)
            _tune(transport.sock)
            channel = transport.open_session(timeout=_CONNECT_TIMEOUT_S)
            channel.exec_command(command(self.spec.engine_python, self.spec.search_path, self.spec.become))
            session = Session(channel)
            session.hello(timeout_s=20.0)
        except ChannelClosed as error:
            connection.close()
            raise Unreachable(
                f"connected, but the agent did not start: {error}",
                hint=f"look at {self.spec.engine_python} there (ops_engine_python), and at sudo with ansible_become",
                host=self.name,
            ) from error
        except Exception as error:
            connection.close()
            raise _unreachable(self.spec, error) from error
        self._connection, self._session = connection, session
        return session


def _tune(sock: socket.socket) -> None:
    """Break a connection whose peer stopped acknowledging (a power cut sends no goodbye), and send small requests at
    once: paramiko leaves Nagle's algorithm on, which holds a request until the last one is acknowledged (40 ms)."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_S * 1000)


def _connection(spec: HostSpec) -> fabric.Connection:
    config = fabric.Config(overrides={"run": {"hide": True}})
    kwargs: dict[str, Any] = {"banner_timeout": 15, "auth_timeout": 15}
    if spec.key_file:
        kwargs |= {"key_filename": spec.key_file, "look_for_keys": False, "allow_agent": False}
    connection = fabric.Connection(
        host=spec.address,
        user=spec.user,
        port=spec.port,
        config=config,
        connect_timeout=_CONNECT_TIMEOUT_S,
        connect_kwargs=kwargs,
    )
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    known_hosts = Path(spec.known_hosts).expanduser()
    if known_hosts.is_file():
        client.load_host_keys(str(known_hosts))
    connection.client = client
    return connection


def _unreachable(spec: HostSpec, error: Exception) -> Unreachable:
    where = f"{spec.user + '@' if spec.user else ''}{spec.address}:{spec.port}"
    what, hint = _explain(spec, error)
    return Unreachable(f"{what} ({where})", hint=hint, host=spec.name)


def _fingerprint(key: paramiko.PKey) -> str:
    """As ssh-keygen -l prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")


def _explain(spec: HostSpec, error: Exception) -> tuple[str, str]:
    if isinstance(error, paramiko.BadHostKeyException):
        return (
            f"its SSH host key is {_fingerprint(error.key)}, and {spec.known_hosts} has "
            f"{_fingerprint(error.expected_key)} for it",
            "if the host was reinstalled, replace its line there; if not, do not connect: somebody else may answer",
        )
    if isinstance(error, paramiko.SSHException) and "not found in known_hosts" in str(error):
        return (
            f"its SSH host key is not in {spec.known_hosts}",
            f"verify the key, then: ssh-keyscan -p {spec.port} {spec.address} >> {spec.known_hosts}",
        )
    if isinstance(error, (paramiko.AuthenticationException, paramiko.PasswordRequiredException)):
        return "permission denied by SSH", "check ansible_user and ansible_ssh_private_key_file in the inventory"
    if isinstance(error, socket.gaierror):
        return f"its name {spec.address} cannot be resolved", "check ansible_host in the inventory"
    if isinstance(error, FileNotFoundError):
        return f"a file that SSH needs is missing: {error}", "check ansible_ssh_private_key_file in the inventory"
    hint = "is the host up, and is this its SSH port?"
    if spec.name == "sandbox" or spec.time_scale != 1:
        hint = "is the sandbox up? `ops sandbox up`"
    return f"no SSH connection: {str(error) or type(error).__name__}", hint
