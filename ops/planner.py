"""What a run will do, and what undoes it.

Pure functions of profile, links and journal, so that any process can compute what another one would have done next.
The proof obligation: from every point at which a run can stop, `recovery` leads to the last good release serving, and
running it twice is the same as running it once (each step looks first).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.model.plan import Plan, Purpose, Step
from ops.model.profile import Profile
from ops.model.state import Armed, Links, last_committed, last_started, touched


def guard_deadline_s(profile: Profile) -> float:
    """How long the host waits for a confirmation, from arming on (engine seconds)."""
    t = profile.timeouts
    return t.drain_timeout_s + t.stop_timeout_s + t.load_timeout_s + t.gate_timeout_s + t.guard_margin_s


def deploy_plan(release: str, profile: Profile, *, fallback: str | None) -> Plan:
    """Replace what serves by `release`. `fallback`: a baseline release to stage beside it, so that it is ready when
    needed."""
    return Plan(
        steps=(
            Step(kind="stage", args={"release": release, "fallback": fallback}),
            *_switch(release, profile, subset="deploy"),
            Step(kind="prune", args={"keep": profile.keep_releases}),
        )
    )


def rollback_plan(release: str, profile: Profile) -> Plan:
    """Go back to `release`, which is on the host already."""
    return Plan(steps=_switch(release, profile, subset="rollback"))


def _switch(release: str, profile: Profile, *, subset: str) -> tuple[Step, ...]:
    arm = Step(kind="arm", args={"release": release, "deadline_s": guard_deadline_s(profile)})
    return (arm, Step(kind="drain"), *_replace(release, subset))


def _replace(release: str, subset: str) -> tuple[Step, ...]:
    """Stop what runs and prove `release` in its place; the host is armed."""
    return (
        Step(kind="stop"),
        Step(kind="activate", args={"release": release}),
        Step(kind="start", args={"release": release}),
        Step(kind="gate", args={"release": release, "subset": subset}),
        Step(kind="confirm", args={"release": release}),
        Step(kind="admit", args={"release": release}),
    )


def start_plan(release: str) -> Plan:
    """Start what is current and let it take traffic when it passes."""
    return Plan(
        steps=(
            Step(kind="start", args={"release": release}),
            Step(kind="gate", args={"release": release, "subset": "rollback"}),
            Step(kind="admit", args={"release": release}),
        )
    )


def stop_plan() -> Plan:
    """Take traffic away, stop, and stay stopped over boots."""
    return Plan(steps=(Step(kind="drain"), Step(kind="stop", args={"want_stopped": True})))


@dataclass(frozen=True)
class Recovery:
    """How to end a run that did not end itself.

    Attributes:
        target: the release that will serve; None: nothing served before and nothing will.
        plan: the steps; empty when the host is as it was.
        committed: the run had passed its commit point, so it is finished, not undone.
    """

    target: str | None
    plan: Plan
    committed: bool = False


def recovery(
    story: Sequence[Mapping[str, Any]], links: Links, armed: Armed | None, confirmed: Armed | None, deadline_s: float
) -> Recovery:
    """Compute how to end what is unfinished, from what lies on the host.

    Args: story: the journal since the host was last settled (`state.story`). armed, confirmed: the guard's markers.
        deadline_s: how long the guard waits for this recovery (engine seconds).
    """
    if confirmed is not None:
        release = confirmed.release
        return Recovery(release, Plan(steps=(Step(kind="finish"), Step(kind="admit", args={"release": release}))), True)
    committed = last_committed(story)
    if committed is not None:
        return Recovery(committed, Plan(steps=(Step(kind="admit", args={"release": committed}),)), True)
    if not touched(story, "stop"):
        return Recovery(links.current, Plan(steps=tuple(_before_stop(story, links, armed))))
    if last_started(story).get("purpose") == Purpose.CONTROL:
        return Recovery(links.current, Plan(steps=()))
    target = way_back(story, links)
    if target is None:
        steps = (Step(kind="stop", args={"want_stopped": True}), Step(kind="activate", args={"release": None}))
        return Recovery(None, Plan(steps=(*steps, Step(kind="disarm"))))
    rearm = Step(kind="rearm", args={"release": target, "deadline_s": deadline_s})
    return Recovery(target, Plan(steps=(rearm, *_replace(target, "rollback"))))


def way_back(story: Sequence[Mapping[str, Any]], links: Links) -> str | None:
    """The release to go back to: the last good one, else a staged baseline; never the one that just failed."""
    failed = last_started(story).get("release")
    return links.last_good or (links.baseline if links.baseline != failed else None)


def _before_stop(story: Sequence[Mapping[str, Any]], links: Links, armed: Armed | None) -> Iterator[Step]:
    """The old server was never stopped: give up the pending release, and let traffic in where it was before."""
    if armed is not None:
        yield Step(kind="disarm")
    drained = armed is not None or touched(story, "drain")
    if drained and links.current and last_started(story).get("admitted", True):
        yield Step(kind="admit", args={"release": links.current})


def restored_plan(release: str) -> Plan:
    """Prove what the guard restored: follow its start, gate it, let traffic in."""
    return start_plan(release)
