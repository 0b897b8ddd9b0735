"""One host's work in a process of its own: a dying parent ends it in order, and its last word is never lost.

Ansible ends its workers with signals to their process group, several times and without waiting. A transaction must
hear one interrupt, restore the host, and say so; hence it does not live in the worker.
"""

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

Event = dict[str, Any]
Emit = Callable[[Event], None]

_ENDING = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1


class Ended(Exception):
    """The process ended without a result: `signal` killed it, or it had a bug (`detail`)."""

    def __init__(self, detail: str, *, signal: int | None = None) -> None:
        super().__init__(detail)
        self.signal = signal


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when `parent`, which started this process, ends. Linux only; elsewhere nothing.

    Source: prctl(2), PR_SET_PDEATHSIG.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:  # it ended before we asked
        os.kill(os.getpid(), signal.SIGTERM)


def alone(work: Callable[[Emit], dict[str, Any]], on_event: Emit) -> dict[str, Any]:
    """Run `work` in a forked process and return its result; what it emits arrives at `on_event` here.

    The first SIGINT or SIGTERM to this process, or its death, is one SIGTERM there (`work` sees KeyboardInterrupt).
    Raises: Ended when no result came.
    """
    read, write = os.pipe()
    parent = os.getpid()
    # Held back until both sides know what to do with them: one that came in between would end this process at once.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _child(parent, write, work, before)
    os.close(write)
    result: dict[str, Any] | None = None
    bug = ""
    with _passing_signals_to(pid), os.fdopen(read, encoding="utf-8") as stream:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for line in stream:
            message = json.loads(line)
            if "event" in message:  # one of these tells a result too: what became of a host
                on_event(message)
            elif "result" in message:
                result = message["result"]
            else:
                bug = message["bug"]
        _, status = os.waitpid(pid, 0)
    if result is not None:
        return result
    if os.WIFSIGNALED(status):
        raise Ended(f"killed by signal {os.WTERMSIG(status)}", signal=os.WTERMSIG(status))
    raise Ended(bug or f"ended with status {status} and no result")


def lead_a_session() -> None:
    """Leave the terminal's process group; from now SIGINT and SIGTERM raise KeyboardInterrupt in this process."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    os.setsid()
    for number in _ENDING:
        signal.signal(number, interrupt)


def _child(parent: int, write: int, work: Callable[[Emit], dict[str, Any]], mask: Iterable[int]) -> None:
    """Never returns: nothing above on the stack belongs to this process."""
    code = 0
    try:
        lead_a_session()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        die_with_parent(parent)
        _say(write, {"result": work(lambda event: _say(write, event))})
    except BaseException:
        code = 1
        _say(write, {"bug": traceback.format_exc()})
    finally:
        os._exit(code)


def _say(write: int, message: dict[str, Any]) -> None:
    """Write one line; nobody listening is no reason to stop restoring a host."""
    view = memoryview(json.dumps(message).encode() + b"\n")
    try:
        while view:
            view = view[os.write(write, view) :]
    except BrokenPipeError:
        return


@contextmanager
def _passing_signals_to(pid: int) -> Iterator[None]:
    passed: list[int] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        if not passed:
            passed.append(number)
            with suppress(ProcessLookupError):  # it ended this moment
                os.kill(pid, signal.SIGTERM)

    before = {number: signal.signal(number, hand_on) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
