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
    """A pending release nobody confirmed yet; `deadline` is epoch seconds on the host."""

    run: str
    release: str
    deadline: float


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
            return Armed(found["RUN"], found["RELEASE"], float(found["DEADLINE"]))
    return None


def confirmed(facts: Facts) -> Armed | None:
    """A release past the commit point whose links nobody finished."""
    found = facts["guard"]["confirmed"]
    return Armed(found["RUN"], found["RELEASE"], float(found["DEADLINE"])) if found else None


def owner(facts: Facts, *, this_host: str, alive: "PidCheck") -> Owner:
    """Tell whether the lock's owner lives.

    Args: alive: asks this machine for a pid; used when the lock was taken from here, which is faster than waiting for
        the heartbeat to go stale.
    """
    lock = facts["lock"]
    if lock is None:
        return Owner.NONE
    if lock["host"] == this_host:
        return Owner.ALIVE if alive(lock["pid"], lock.get("pid_start")) else Owner.DEAD
    return Owner.ALIVE if lock["heartbeat_age_s"] <= STALE_HEARTBEAT_S else Owner.DEAD


PidCheck = Callable[[int, int | None], bool]
"""Tells whether (pid, start time) lives on the machine that asks."""


def run_events(facts: Facts, run: str) -> list[Mapping[str, Any]]:
    """The journal's events of one run, oldest first."""
    return [event for event in facts["journal"] if event.get("run") == run]


def open_run(events: Sequence[Mapping[str, Any]]) -> str | None:
    """The latest run that began and was neither ended by its client nor by the guard; None when every run is closed."""
    closed = {e["run"] for e in events if e.get("event") in ("run-ended", "restored", "confirmed-late") and "run" in e}
    begun = [e["run"] for e in events if e.get("event") == "run-started"]
    return next((run for run in reversed(begun) if run not in closed), None)


def touched(events: Sequence[Mapping[str, Any]], kind: str) -> bool:
    """True when a step of that kind was begun in the run."""
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
