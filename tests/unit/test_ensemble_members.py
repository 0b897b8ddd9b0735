"""The meetings between the processes that work on the hosts of one model.

If this fails, one host confirms what another has given up, or a command waits for ever for a host that is gone.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from ops.errors import PeerFailed
from ops.fleet.ensemble import together
from ops.fleet.member import Member
from ops.model.inventory import HostSpec, Node
from ops.model.ports import Reporter
from ops.model.result import HostResult

NAMES = ("a", "b", "c")
MEMBERS = tuple(
    HostSpec(name=name, address=name, node=Node(ensemble="e", rank=rank, members=NAMES, dist_address="a"))
    for rank, name in enumerate(NAMES)
)
FOREVER_S = 60.0


class Said:
    """Keeps what was said to the operator."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, host: str, text: str) -> None:
        self.lines.append(f"{host}: {text}")

    def step(self, host: str, kind: str, detail: str) -> None:
        self.lines.append(f"{host}: {kind} {detail}")

    def phase(self, host: str, name: str, elapsed_s: float, expected_s: float | None) -> None:
        self.lines.append(f"{host}: {name}")


def done(spec: HostSpec, message: str = "", code: int = 0, **details: Any) -> HostResult:
    return HostResult.on(spec, outcome="done", exit_code=code, message=message, details=details)


def test_everybody_hears_what_everybody_said() -> None:
    def work(spec: HostSpec, member: Member, reporter: Reporter) -> HostResult:
        reporter.say(spec.name, "here")
        words = member.meet("first", spec.name.upper())
        return done(spec, said=dict(words), again=dict(member.meet("second", "x")))

    said = Said()
    results = together(MEMBERS, work, said)

    assert [r.host for r in results] == list(NAMES)
    assert all(
        r.details == {"said": {"a": "A", "b": "B", "c": "C"}, "again": dict.fromkeys(NAMES, "x")} for r in results
    )
    assert sorted(said.lines) == ["a: here", "b: here", "c: here"]


def test_nobody_passes_a_meeting_before_the_last_one_is_there(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def note(word: str) -> None:
        with log.open("a") as file:
            file.write(f"{word}\n")

    def work(spec: HostSpec, member: Member, reporter: Reporter) -> HostResult:
        time.sleep({"a": 0.0, "b": 0.1, "c": 0.3}[spec.name])
        note("stopped")
        with member.step("start", recovering=False):
            note("started")
        return done(spec)

    together(MEMBERS, work, Said())

    assert log.read_text().split() == ["stopped"] * 3 + ["started"] * 3


def test_rank_0_is_judged_before_the_others_are(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def work(spec: HostSpec, member: Member, reporter: Reporter) -> HostResult:
        with member.step("gate", recovering=False):
            time.sleep(0.2 if spec.name == "a" else 0.0)
            with log.open("a") as file:
                file.write(f"{spec.name}\n")
        return done(spec)

    together(MEMBERS, work, Said())

    assert log.read_text().split()[0] == "a"


@pytest.mark.parametrize("late_s", [0.0, 0.6])
@pytest.mark.parametrize("how", ["raises", "dies", "is refused"])
def test_a_member_that_fails_ends_the_long_step_of_the_others_at_once(how: str, late_s: float) -> None:
    def work(spec: HostSpec, member: Member, reporter: Reporter) -> HostResult:
        member.begin()
        member.meet("ready")
        if spec.name == "b":
            time.sleep(0.3)  # the others are in their step by now, or not yet: both must end
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "is refused":
                return done(spec, "no", code=2)
            member.going_back("the engine died")
            return done(spec, "rolled back", code=3)
        time.sleep(late_s)
        try:
            with member.step("activate", recovering=False):
                time.sleep(FOREVER_S)
        except PeerFailed as error:
            member.going_back(str(error))
            return done(spec, error.message, code=3, broken=member.broken, admit=member.may_admit())
        return done(spec)

    begun = time.monotonic()
    results = together(MEMBERS, work, Said())

    assert time.monotonic() - begun < FOREVER_S / 3
    reason = {
        "raises": "b: the engine died",
        "dies": "b: the process that worked on it ended without a word",
        "is refused": "b: no",
    }[how]
    assert [(r.message, r.exit_code) for r in results if r.host != "b"] == [(reason, 3)] * 2
    assert all(r.details == {"broken": reason, "admit": True} for r in results if r.host != "b")
    assert results[1].exit_code == {"raises": 3, "dies": 4, "is refused": 2}[how]


def test_a_member_that_waits_for_a_failed_one_is_told(tmp_path: Path) -> None:
    def work(spec: HostSpec, member: Member, reporter: Reporter) -> HostResult:
        if spec.name == "c":
            time.sleep(0.2)
            return done(spec, "locked", code=2)
        with pytest.raises(PeerFailed, match="c: locked"):
            member.meet("owned")
        return done(spec, code=2)

    assert [r.exit_code for r in together(MEMBERS, work, Said())] == [2, 2, 2]


def test_on_the_way_back_nobody_starts_before_all_have_stopped_and_nobody_waits_for_who_is_gone(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def work(spec: HostSpec, member: Member, reporter: Reporter) -> HostResult:
        member.meet("ready")
        if spec.name == "a":
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(PeerFailed):
            member.meet("never")
        member.going_back("told")
        time.sleep(0.3 if spec.name == "c" else 0.0)
        for kind in ("stop", "start", "gate", "confirm", "admit"):
            with member.step(kind, recovering=True), log.open("a") as file:
                file.write(f"{kind}\n")
        return done(spec, code=3)

    results = together(MEMBERS, work, Said())

    assert [r.exit_code for r in results] == [4, 3, 3]
    assert log.read_text().split()[:4] == ["stop", "stop", "start", "start"]


def test_what_a_dead_run_left_is_undone_without_waiting_for_the_others() -> None:
    def work(spec: HostSpec, member: Member, reporter: Reporter) -> HostResult:
        if spec.name == "b":  # only this host has something to undo
            for kind in ("stop", "start", "gate"):
                with member.step(kind, recovering=True):
                    pass
        member.meet("owned")
        return done(spec)

    assert [r.exit_code for r in together(MEMBERS, work, Said())] == [0, 0, 0]


def test_a_signal_reaches_every_member_once() -> None:
    leader = os.getpid()

    def work(spec: HostSpec, member: Member, reporter: Reporter) -> HostResult:
        try:
            member.meet("ready")
            if spec.name == "a":
                os.kill(leader, signal.SIGINT)
            time.sleep(FOREVER_S)
        except KeyboardInterrupt:
            member.going_back("interrupted")
            return done(spec, code=130)
        return done(spec)

    results = together(MEMBERS, work, Said())

    assert [r.exit_code for r in results] == [130, 130, 130]


def test_interrupted_before_its_work_a_member_says_so() -> None:
    leader = os.getpid()

    def work(spec: HostSpec, member: Member, reporter: Reporter) -> HostResult:
        member.meet("ready")
        if spec.name == "a":
            os.kill(leader, signal.SIGTERM)
        time.sleep(FOREVER_S)
        return done(spec)

    results = together(MEMBERS, work, Said())

    assert [(r.outcome, r.exit_code) for r in results] == [("interrupted", 130)] * 3


def test_a_release_that_all_have_confirmed_may_be_admitted_whatever_fails_afterwards() -> None:
    def work(spec: HostSpec, member: Member, reporter: Reporter) -> HostResult:
        member.begin()
        for kind in ("confirm", "admit"):
            with member.step(kind, recovering=False):
                pass
        member.going_back("the disk is full")
        return done(spec, broken=member.broken, admit=member.may_admit())

    assert [r.details for r in together(MEMBERS, work, Said())] == [{"broken": "", "admit": True}] * 3


def test_what_only_some_have_confirmed_takes_no_traffic_until_it_was_started_anew_together() -> None:
    def work(spec: HostSpec, member: Member, reporter: Reporter) -> HostResult:
        member.begin()
        found = []
        try:
            with member.step("confirm", recovering=False):
                if spec.name == "b":
                    raise PeerFailed("its guard was faster")
            found.append(member.may_admit())
            with member.step("admit", recovering=False):
                pass
        except PeerFailed as error:
            member.going_back(error.message)
        member.begin()
        for kind in ("stop", "start", "gate", "confirm", "admit"):
            with member.step(kind, recovering=False):
                found.append(member.may_admit())
        return done(spec, found=found, broken=member.broken)

    a, b, c = together(MEMBERS, work, Said())

    assert b.details["found"] == [True] * 5
    for result in (a, c):
        assert result.details["broken"] == "b: its guard was faster"
        assert result.details["found"] == [False, False, False, True, True, True]


def test_a_bug_in_one_members_work_is_shown_and_sends_the_others_back() -> None:
    def work(spec: HostSpec, member: Member, reporter: Reporter) -> HostResult:
        member.meet("ready")
        if spec.name == "a":
            raise ValueError("a slip")
        with pytest.raises(PeerFailed):
            member.meet("next")
        return done(spec, code=3)

    results = together(MEMBERS, work, Said())

    assert (results[0].exit_code, "ValueError: a slip" in results[0].message) == (1, True)
    assert [r.exit_code for r in results[1:]] == [3, 3]
