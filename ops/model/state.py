"""What a host's links, markers and journal say: pure readings of `facts.observe`.

State is never stored as a word. Everything here is computed from what lies on the host, by whoever asks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Facts = Mapping[str, Any]

STALE_HEARTBEAT_S = 15.0
"""A lock whose heartbeat is older (wall seconds) has a dead owner; owners beat every 2 s."""


@dataclass(frozen=True)
class Links:
    """The four links; None where there is no such link."""

    current: str | None
    last_good: str | None
    baseline: str | None
    pending: str | None

    @classmethod
    def of(cls, facts: Facts) -> "Links":
        links = facts["links"]
        return cls(links["current"], links["last-good"], links["baseline"], links["pending"])


@dataclass(frozen=True)
class Armed:
    """A pending release nobody confirmed yet, armed in `boot`; `deadline` is epoch seconds on the host."""

    run: str
    release: str
    deadline: float
    boot: str


class Owner(StrEnum):
    """What the lock says about its owner."""

    NONE = "none"
    ALIVE = "alive"
    DEAD = "dead"


def armed(facts: Facts) -> Armed | None:
    """The pending release, whichever marker carries it; None when nothing is pending."""
    guard = facts["guard"]
    for marker in ("armed", "armed.client", "fired"):
        found = guard[marker]
        if found:
            return _armed(found)
    return None


def confirmed(facts: Facts) -> Armed | None:
    """A release past the commit point whose links nobody finished."""
    found = facts["guard"]["confirmed"]
    return _armed(found) if found else None


def _armed(marker: Mapping[str, str]) -> Armed:
    return Armed(marker["RUN"], marker["RELEASE"], float(marker["DEADLINE"]), marker["BOOT"])


def owner(facts: Facts, *, here: str, alive: "PidCheck") -> Owner:
    """Tell whether the lock's owner lives.

    Args:
        here: this machine and pid namespace, as `ops.run.place` names them; a host's name alone may be that of several
            containers.
        alive: asks this machine for a pid; used when the lock was taken from here, which is faster than waiting for
            the heartbeat to go stale.
    """
    lock = facts["lock"]
    if lock is None:
        return Owner.NONE
    if lock.get("place") == here:
        return Owner.ALIVE if alive(lock["pid"], lock.get("pid_start")) else Owner.DEAD
    return Owner.ALIVE if lock["heartbeat_age_s"] <= STALE_HEARTBEAT_S else Owner.DEAD


PidCheck = Callable[[int, int | None], bool]
"""Tells whether (pid, start time) lives on the machine that asks."""


_RUN_KINDS = frozenset(
    {"run-started", "lock-taken", "step-started", "step-done", "step-failed", "committed", "run-ended"}
)
_HOST_ENDED = frozenset({"restored", "confirmed-late"})
"""What the host itself writes when it undid or finished a run."""


def story(journal: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What happened since the host was last in a settled state, oldest first.

    One writer a host, so whatever ends one run ends everything before it. A run that ended unsafe proved nothing: its
    events stay part of the story until a later run ends well or the guard restored the host.
    """
    found: list[Mapping[str, Any]] = []
    for event in journal:
        kind = event.get("event")
        unproven = kind == "run-ended" and event.get("outcome") == "unsafe" and last_committed(found) is None
        if kind in _HOST_ENDED or (kind == "run-ended" and not unproven):
            found = []
        elif kind in _RUN_KINDS:
            found.append(event)
    return found


def open_runs(journal: Sequence[Mapping[str, Any]]) -> list[str]:
    """Runs that began and that nobody ended, in the order they began: a dead run, and whoever died settling it."""
    found: list[str] = []
    for event in story(journal):
        if event["event"] in ("run-started", "lock-taken") and event["run"] not in found:
            found.append(event["run"])
        elif event["event"] == "run-ended":
            found = []
    return found


def last_step(journal: Sequence[Mapping[str, Any]], run: str) -> int:
    """The number of the latest step that `run` began; 0 when there is none."""
    return max((int(e["seq"]) for e in journal if e.get("event") == "step-started" and e.get("run") == run), default=0)


def last_committed(events: Sequence[Mapping[str, Any]]) -> str | None:
    """The release whose commit point the events contain; None when there is none."""
    return next((str(e["release"]) for e in reversed(events) if e.get("event") == "committed"), None)


def last_started(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The latest `run-started` event; empty when there is none."""
    return next((e for e in reversed(events) if e.get("event") == "run-started"), {})


def host_ended(journal: Sequence[Mapping[str, Any]], run: str) -> str | None:
    """How the host itself ended `run` (`restored` or `confirmed-late`); None when it did not."""
    for event in reversed(journal):
        if event.get("run") == run and event.get("event") in _HOST_ENDED:
            return str(event["event"])
    return None


def touched(events: Sequence[Mapping[str, Any]], kind: str) -> bool:
    """True when a step of that kind was begun."""
    return any(e.get("event") == "step-started" and e["step"]["kind"] == kind for e in events)


def last_gate(facts: Facts, release: str | None) -> dict[str, Any] | None:
    """The latest gate verdict on `release`: {at, outcome, verdicts, figures}; None when it was never gated."""
    for event in reversed(facts["journal"]):
        if event.get("event") == "gated" and event.get("release") == release:
            return dict(event)
    return None


def ungated_restore(facts: Facts) -> dict[str, Any] | None:
    """The guard's latest restore or fall-back, while no gate has passed since; None otherwise."""
    for event in reversed(facts["journal"]):
        kind = event.get("event")
        if kind == "gated" and event.get("outcome") == "pass":
            return None
        if kind in ("restored", "fallback") and event.get("release"):
            return dict(event)
    return None


def profile_name(release: str | None) -> str | None:
    """`eagle3-2step-0123456789ab` is a release of profile `eagle3-2step`."""
    return release.rpartition("-")[0] if release else None
