"""The client's half of the agent: many calls at once over one SSH channel.

Invariant: a call ends with a result, an `AgentError`, or `ChannelClosed`; never silently.
"""

import base64
import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from ops.remote import loader

Event = Mapping[str, Any]
_GREETING = b"OPS-AGENT\n"
_BROKEN = (OSError, EOFError)
"""What a paramiko channel raises when its transport is gone. Source: paramiko 5.1 packet.py, `write_all`: EOFError."""


class Channel(Protocol):
    """The part of a paramiko channel that a session uses."""

    def sendall(self, data: bytes) -> Any: ...

    def recv(self, size: int) -> bytes: ...

    def recv_stderr(self, size: int) -> bytes: ...

    def close(self) -> None: ...


class ChannelClosed(Exception):
    """The channel ended; `detail` is what the host said on standard error."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail or "the SSH channel was closed")
        self.detail = detail


class AgentError(Exception):
    """A verb raised on the host; `code` says what, `kind` is the exception's class there."""

    def __init__(self, kind: str, code: str, message: str, data: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.data = data


class CallTimedOut(Exception):
    """A verb did not answer in time."""


def command(python: str, search_path: tuple[str, ...], become: bool) -> str:
    """The one command line that starts the agent under any login shell.

    Whatever the login shell is or prints (fish, csh, a message, `set -e`), it only sees one word in single quotes and
    hands it to /bin/sh; what it printed before the greeting is skipped by the reader. The environment is built here,
    never inherited.
    """
    path = ":".join([*search_path, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"])
    sudo = "sudo -n -- " if become else ""
    script = (
        f"printf 'OPS-AGENT\\n'; printf 'OPS-AGENT\\n' >&2; "
        f"[ -x {_quote(python)} ] || {{ echo 'there is no Python at {python}' >&2; exit 69; }}; "
        f'exec {sudo}env -i PATH={_quote(path)} HOME="$HOME" LC_ALL=C.UTF-8 '
        f"{_quote(python)} -IS -c {_quote(loader.BOOT)}"
    )
    word = base64.b64encode(script.encode()).decode()
    return f"/bin/sh -c 'eval \"$(printf %s {word} | base64 -d)\"'"


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


class Session:
    """One running agent."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._calls: dict[int, queue.SimpleQueue[Mapping[str, Any] | None]] = {}
        self._lock = threading.Lock()
        self._next = 0
        self._closed = False
        self._stderr = b""
        self._hello: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read_stderr, daemon=True).start()
        threading.Thread(target=self._read, daemon=True).start()
        channel.sendall(loader.bundle())

    def hello(self, timeout_s: float) -> Mapping[str, Any]:
        """Wait for the agent's first word. Raises: ChannelClosed, CallTimedOut."""
        try:
            message = self._hello.get(timeout=timeout_s)
        except queue.Empty:
            raise CallTimedOut(f"the agent did not start within {timeout_s:.0f} s") from None
        if message is None:
            raise ChannelClosed(self.detail)
        return message

    @property
    def detail(self) -> str:
        """What the agent's side said on standard error, without what the login shell printed."""
        return self._stderr.rpartition(_GREETING)[2].decode(errors="replace").strip()

    def call(
        self, verb: str, args: Mapping[str, Any], timeout_s: float, on_event: Callable[[Event], None] | None = None
    ) -> Any:
        """Run a verb. Raises: AgentError, ChannelClosed, CallTimedOut."""
        answers: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        with self._lock:
            if self._closed:
                raise ChannelClosed(self.detail)
            self._next += 1
            number = self._next
            self._calls[number] = answers
        try:
            request = {"id": number, "verb": verb, "args": args}
            try:
                with self._lock:
                    self._channel.sendall(json.dumps(request).encode() + b"\n")
            except _BROKEN as error:
                raise ChannelClosed(str(error)) from error
            return self._wait(verb, answers, timeout_s, on_event)
        finally:
            with self._lock:
                self._calls.pop(number, None)

    def _wait(
        self,
        verb: str,
        answers: "queue.SimpleQueue[Mapping[str, Any] | None]",
        timeout_s: float,
        on_event: Callable[[Event], None] | None,
    ) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                message = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise CallTimedOut(f"{verb} did not answer within {timeout_s:.0f} s") from None
            if message is None:
                raise ChannelClosed(self.detail)
            if "event" in message:
                if on_event is not None:
                    on_event(message["event"])
            elif "error" in message:
                error = message["error"]
                raise AgentError(error["kind"], error["code"], error["message"], error["data"])
            else:
                return message["result"]

    def close(self) -> None:
        with suppress(*_BROKEN):  # saying goodbye to who is gone
            self._channel.close()

    def _read_stderr(self) -> None:
        while data := self._receive(self._channel.recv_stderr):
            self._stderr = (self._stderr + data)[-65536:]

    @staticmethod
    def _receive(recv: Callable[[int], bytes]) -> bytes:
        try:
            return recv(65536)
        except _BROKEN:
            return b""

    def _read(self) -> None:
        rest, greeted = b"", False
        while data := self._receive(self._channel.recv):
            rest += data
            if not greeted:
                _, mark, after = rest.partition(_GREETING)
                if not mark:
                    continue
                rest, greeted = after, True
            *lines, rest = rest.split(b"\n")
            for line in lines:
                self._dispatch(json.loads(line))
        with self._lock:
            self._closed = True
            waiting = list(self._calls.values())
        self._hello.put(None)
        for answers in waiting:
            answers.put(None)

    def _dispatch(self, message: Mapping[str, Any]) -> None:
        if "hello" in message:
            self._hello.put(message["hello"])
            return
        with self._lock:
            answers = self._calls.get(message["id"])
        if answers is not None:
            answers.put(message)
