"""The sandbox's SSH server: `python -m ops.sandbox.sshd FOLDER LISTENER_FD OWNER_FD`.

Behaves as sshd on a machine that ends a login's processes with the login: each command is its own session under
`/bin/sh -c` with a minimal environment; when a connection ends, the sessions of its commands are killed, and only
what left its session (or belongs to the supervisor) lives on. No sudo, no passwords: one user, one key.

SIGUSR1 takes `ssh/cut-request.json` ({"for_s": wall seconds}), drops every connection at once and refuses new ones that
long; the request is removed when the cut has struck, and `ssh/cut.json` ({"until": epoch}) is there until the server
listens again.
Invariant: output is complete before the exit status, and a command killed by signal n ends with 128+n.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path

import asyncssh

from ops.sandbox.address import listen
from ops.sandbox.environment import environment
from ops.sandbox.layout import SSH_PORT, SSH_USER, Layout, write_file
from ops.sandbox.processes import in_sessions, kill
from ops.sandbox.streams import CHUNK_BYTES, Streams, pipes, read, terminal

_log = logging.getLogger("ops.sandbox.sshd")


class Login(asyncssh.SSHServer):
    """One client connection: who may log in, and the sessions that end with it."""

    def __init__(self, connections: "set[Login]", key: asyncssh.SSHKey) -> None:
        self._connections = connections
        self._key = key
        self._ended = False
        self.sessions: set[int] = set()
        self.connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.connection = conn
        self._connections.add(self)

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == SSH_USER and key == self._key

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._connections.discard(self)
        self.kill_sessions()

    def add_session(self, session: int) -> None:
        self.sessions.add(session)
        if self._ended:
            # The connection was lost while the command was being started.
            self.kill_sessions()

    def forget_if_empty(self, session: int) -> None:
        """A session without processes must not be remembered: its number may be given to somebody else."""
        try:
            os.killpg(session, 0)
        except ProcessLookupError:
            self.sessions.discard(session)

    def kill_sessions(self) -> None:
        if self.sessions:
            for process in in_sessions(self.sessions):
                kill(process)
            self.sessions.clear()


class Server:
    """The listening side: starts and stops accepting, and serves commands."""

    def __init__(self, layout: Layout, listener: socket.socket) -> None:
        self._layout = layout
        self._listener: socket.socket | None = listener
        self._address: str = listener.getsockname()[0]
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self._connections: set[Login] = set()
        self._cut: asyncio.Task[None] | None = None

    async def accept(self) -> None:
        listener, self._listener = self._listener or listen(self._address, SSH_PORT), None
        if listener is None:
            raise OSError(f"{self._address}:{SSH_PORT} is taken")
        listener.setblocking(False)
        key = asyncssh.read_public_key(f"{self._layout.client_key}.pub")
        self._acceptor = await asyncssh.listen(
            sock=listener,
            server_factory=lambda: Login(self._connections, key),
            server_host_keys=[str(self._layout.host_key)],
            process_factory=self._serve,
            sftp_factory=True,
            encoding=None,
            line_editor=False,
            agent_forwarding=False,
            x11_forwarding=False,
            gss_host=None,
            login_timeout=20,
            tcp_keepalive=True,
        )

    def cut(self) -> None:
        """Drop every connection, now; listen again after the time that the request asks for (0: keep listening)."""
        for_s = float(json.loads(self._layout.cut_request.read_text())["for_s"])
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None
        if self._acceptor is not None and for_s > 0:
            self._acceptor.close()
            self._acceptor = None
        for login in list(self._connections):
            login.kill_sessions()
            if login.connection is not None:
                login.connection.abort()
        _log.info("cut: every connection dropped, no new ones for %.1f s", for_s)
        if self._acceptor is None:
            write_file(self._layout.cut, json.dumps({"until": time.time() + for_s}))
            self._cut = asyncio.get_running_loop().create_task(self._come_back(for_s))
        self._layout.cut_request.unlink()

    async def _come_back(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self.accept()
        self._layout.cut.unlink(missing_ok=True)

    async def _serve(self, process: "asyncssh.SSHServerProcess[bytes]") -> None:
        login = process.channel.get_connection().get_owner()
        assert isinstance(login, Login)
        try:
            await _run(process, login, self._layout)
        except (asyncssh.Error, ConnectionError) as error:
            _log.info("connection ended under a command: %s", error)
        except OSError as error:
            _log.exception("command could not be run")
            process.stderr.write(f"sandbox sshd: {error}\n".encode())
            process.exit(255)


async def _run(process: "asyncssh.SSHServerProcess[bytes]", login: Login, layout: Layout) -> None:
    term = process.term_type
    streams = await (terminal() if term is not None else pipes())
    variables = environment(layout, dict(process.env))
    try:
        if term is not None:
            streams.resize(*process.term_size)
            variables["TERM"] = term
        argv = [*streams.prefix, "/bin/sh", *(["-c", process.command] if process.command is not None else [])]
        stdin, stdout, stderr = streams.child_ends
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=layout.home,
            env=variables,
            # setsid makes the session where a terminal has to become its own.
            start_new_session=not streams.prefix,
        )
    except BaseException:
        streams.close()
        raise
    finally:
        streams.close_child_ends()
    login.add_session(child.pid)
    feeding = asyncio.create_task(_feed(process, streams, child.pid))
    try:
        sinks = (process.stdout, process.stderr)
        await asyncio.gather(*(_pump(reader, sink) for (reader, _), sink in zip(streams.outputs, sinks, strict=False)))
        status = await child.wait()
        # Nothing may be left in the channel's buffer when the status goes out: clients stop reading after it.
        process.channel.set_write_buffer_limits(0, 0)
        await process.stdout.drain()
        await process.stderr.drain()
        process.exit(status if status >= 0 else 128 - status)
    finally:
        feeding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await feeding
        # A client that closed its channel: the command sees broken pipes (a terminal's: a hang-up), and lives as long
        # as the connection.
        streams.close()
        await child.wait()
        login.forget_if_empty(child.pid)


async def _feed(process: "asyncssh.SSHServerProcess[bytes]", streams: Streams, group: int) -> None:
    while True:
        try:
            data = await process.stdin.read(CHUNK_BYTES)
        except asyncssh.SignalReceived as received:
            with contextlib.suppress(ProcessLookupError, AttributeError):
                os.killpg(group, getattr(signal, f"SIG{received.signal}"))
            continue
        except asyncssh.TerminalSizeChanged as change:
            streams.resize(*change.term_size)
            continue
        except asyncssh.BreakReceived:
            continue
        except (asyncssh.Error, OSError):
            # The client is gone; the command sees the end of its input.
            data = b""
        try:
            if not data:
                streams.end_input()
                return
            streams.stdin.write(data)
            await streams.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            return


async def _pump(source: asyncio.StreamReader, sink: "asyncssh.SSHWriter[bytes]") -> None:
    while data := await read(source):
        sink.write(data)
        await sink.drain()


async def _main(layout: Layout, listener: socket.socket) -> None:
    server = Server(layout, listener)
    await server.accept()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, server.cut)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


def main() -> None:
    layout = Layout(Path(sys.argv[1]))
    listener, owner = (socket.socket(fileno=int(argument)) for argument in sys.argv[2:4])
    for inherited in (listener, owner):
        inherited.set_inheritable(False)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    asyncio.run(_main(layout, listener))
    owner.close()


if __name__ == "__main__":
    main()
