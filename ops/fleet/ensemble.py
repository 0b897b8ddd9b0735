"""One command for all hosts of an ensemble: a process for each member, and the meetings between them.

Invariant: members go forward together or go back, each by its own transaction; a member that fails, is interrupted or
lost sends all others back.
"""

import json
import os
import selectors
import signal
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from ops.errors import Exit
from ops.fleet.lifeline import die_with_parent, lead_a_session
from ops.fleet.member import MEETINGS, Member
from ops.model.inventory import HostSpec
from ops.model.ports import Reporter
from ops.model.result import HostResult

Work = Callable[[HostSpec, Member, Reporter], HostResult]
_POLL_S = 0.2
_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@dataclass
class _Part:
    """What is known of one member. `at`: the meeting it waits for. reached: how far it is on its way back."""

    spec: HostSpec
    pid: int
    line: socket.socket
    rest: bytes = b""
    at: str | None = None
    word: str = ""
    back: bool = False
    told: bool = False
    reached: int = -1
    done: bool = False
    result: HostResult | None = None
    bug: str = ""


@dataclass
class _Lead:
    """What the members have in common."""

    parts: list[_Part] = field(default_factory=list)
    broken: str = ""
    interrupted: int = 0
    passed_on: int = 0


def together(hosts: Sequence[HostSpec], work: Work, reporter: Reporter) -> list[HostResult]:
    """Do `work` on every host at once; a result for each, in the hosts' order. Never raises an OpsError.

    The first SIGINT or SIGTERM is one for each member, which restores its host; so is the death of this process.
    """
    lead = _Lead()
    with _heard(lead):
        for host in hosts:
            lead.parts.append(_start(host, work, [part.line for part in lead.parts]))
        try:
            _lead(lead, reporter)
        finally:
            for part in lead.parts:
                part.line.close()
    return [part.result if part.result is not None else _lost(part.spec, part.bug) for part in lead.parts]


def _start(spec: HostSpec, work: Work, others: Sequence[socket.socket]) -> _Part:
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)  # until the member can hear them
    pid = os.fork()
    if pid == 0:
        for line in (ours, *others):  # only this process' death may end the others' lines
            line.close()
        _be_member(spec, theirs, work, parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return _Part(spec, pid, ours)


def _be_member(spec: HostSpec, line: socket.socket, work: Work, parent: int) -> None:
    """Never returns: nothing above on the stack belongs to this process."""
    code = 1
    try:
        lead_a_session()
        member = Member(line, spec.name, leader=spec.node is None or spec.node.leader)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
            die_with_parent(parent)
            result = work(spec, member, _Told(member))
        except KeyboardInterrupt:
            text = "interrupted before anything was touched"
            result = HostResult.on(
                spec, outcome="interrupted", exit_code=int(Exit.INTERRUPTED), message=text, changed=False
            )
        except BaseException:
            member.send({"bug": traceback.format_exc()})
            raise
        member.send({"result": result.model_dump(mode="json")})
        code = 0
    finally:
        os._exit(code)


class _Told:
    """What a member's flow says, sent to who leads."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def say(self, host: str, text: str) -> None:
        self._member.send({"say": [host, text]})

    def step(self, host: str, kind: str, detail: str) -> None:
        self._member.send({"step": [host, kind, detail]})

    def phase(self, host: str, name: str, elapsed_s: float, expected_s: float | None) -> None:
        self._member.send({"phase": [host, name, elapsed_s, expected_s]})


@contextmanager
def _heard(lead: _Lead) -> Iterator[None]:
    def hear(number: int, frame: FrameType | None) -> None:
        lead.interrupted += 1

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _lead(lead: _Lead, reporter: Reporter) -> None:
    with selectors.DefaultSelector() as waiting:
        for part in lead.parts:
            waiting.register(part.line, selectors.EVENT_READ, part)
        while not all(part.done for part in lead.parts):
            for key, _ in waiting.select(_POLL_S):
                if not _listen(lead, key.data, reporter):
                    waiting.unregister(key.fileobj)
            if lead.interrupted > lead.passed_on:
                lead.passed_on += 1
                text = "interrupted: restoring every host" if lead.passed_on == 1 else "left to the guards"
                reporter.say("ops", text)
                for part in lead.parts:
                    _signal(part, signal.SIGTERM)


def _listen(lead: _Lead, part: _Part, reporter: Reporter) -> bool:
    """Take what a member says. False when it has ended."""
    try:
        data = part.line.recv(65536)
    except OSError:
        data = b""
    *lines, part.rest = (part.rest + data).split(b"\n")
    for line in lines:
        _take(lead, part, json.loads(line), reporter)
    if data:
        return True
    os.waitpid(part.pid, 0)
    part.done, part.at = True, None
    if part.result is None:
        _break(lead, part, "the process that worked on it ended without a word")
    _let_back(lead)
    return False


def _take(lead: _Lead, part: _Part, message: dict[str, Any], reporter: Reporter) -> None:
    if "meet" in message:
        part.at, part.word = message["meet"], message["word"]
        if message["back"]:
            part.reached = max(part.reached, MEETINGS.index(part.at))
            _let_back(lead)
        elif not part.told:
            _let_forward(lead)
    elif "back" in message:
        part.back, part.at = True, None
        _break(lead, part, message["back"])
    elif "result" in message:
        part.result = HostResult.model_validate(message["result"])
        if part.result.exit_code:
            _break(lead, part, part.result.message)
    elif "bug" in message:
        part.bug = message["bug"]
    else:
        for kind in ("say", "step", "phase"):
            if kind in message:
                getattr(reporter, kind)(*message[kind])


def _let_forward(lead: _Lead) -> None:
    """All wait at one point: all go on, and know what each said."""
    if lead.broken or len({part.at for part in lead.parts}) != 1:
        return
    words = {part.spec.name: part.word for part in lead.parts}
    for part in lead.parts:
        point, part.at = part.at, None
        _send(part, {"met": point, "back": False, "words": words})


def _let_back(lead: _Lead) -> None:
    """On the way back a member waits for those that are not as far yet, never for one that has ended."""
    for part in lead.parts:
        if not part.back or part.at is None:
            continue
        point = MEETINGS.index(part.at)
        if all(other.done or other.reached >= point for other in lead.parts if other is not part):
            met, part.at = part.at, None
            _send(part, {"met": met, "back": True, "words": {}})


def _break(lead: _Lead, source: _Part, reason: str) -> None:
    """Send every other member back, at once."""
    lead.broken = lead.broken or f"{source.spec.name}: {reason}"
    for part in lead.parts:
        if part is not source and not (part.back or part.told or part.done or part.result):
            part.told, part.at = True, None
            _send(part, {"broken": lead.broken})
            _signal(part, signal.SIGUSR1)


def _send(part: _Part, message: dict[str, Any]) -> None:
    try:
        part.line.sendall(json.dumps(message).encode() + b"\n")
    except OSError:  # its end is read as such
        return


def _signal(part: _Part, number: signal.Signals) -> None:
    if not part.done:  # not waited for yet, so the pid is still its own
        os.kill(part.pid, number)


def _lost(spec: HostSpec, bug: str) -> HostResult:
    if bug:
        return HostResult.on(
            spec, outcome="bug", exit_code=int(Exit.BUG), message=f"a bug in ops:\n{bug}", hint="ops status"
        )
    return HostResult.on(
        spec,
        outcome="unsafe",
        exit_code=int(Exit.UNSAFE),
        message="the process that worked on it ended; what it did not confirm, the host's guard undoes",
        hint=f"ops status --host {spec.name}",
    )
