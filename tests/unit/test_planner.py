"""Recovery as a pure machine. If this breaks, a run that stopped at an unlucky line leaves a host with no server, two
owners of one port, or a release that nobody ever confirmed, and no test with real processes may ever hit that line."""

from collections.abc import Callable
from pathlib import Path

import pytest
from transaction_host import Host, Interrupted

from ops.config.profiles import load_profile
from ops.model.plan import Plan, Purpose
from ops.model.profile import Profile
from ops.model.state import Links
from ops.planner import deploy_plan, guard_deadline_s, recovery, rollback_plan, start_plan, stop_plan

OLD, NEW, BASE = "old-1", "new-2", "base-0"


@pytest.fixture(scope="module")
def profile(shipped_project: Path) -> Profile:
    return load_profile(shipped_project, "eagle3-2step")


def serving() -> Host:
    return Host(current=OLD, last_good=OLD, baseline=BASE, running=OLD, admitted=OLD)


def fresh() -> Host:
    return Host(wanted="stopped")


def only_baseline() -> Host:
    return Host(baseline=BASE, wanted="stopped")


HOSTS: dict[str, Callable[[], Host]] = {"serving": serving, "fresh": fresh, "baseline-staged": only_baseline}


def plans(profile: Profile) -> dict[str, Plan]:
    return {"deploy": deploy_plan(NEW, profile, fallback=BASE), "rollback": rollback_plan(NEW, profile)}


def interrupted_after(host: Host, lines: int, plan: Plan) -> bool:
    """Run `plan` until that many journal lines are written; returns whether it was cut short."""
    host.lines_left = lines
    try:
        host.begin("r1", Purpose.CANDIDATE, NEW)
        host.perform("r1", plan)
        host.write("r1", "run-ended", outcome="done")
    except Interrupted:
        host.lines_left = None
        return True
    host.lines_left = None
    return False


def is_whole(host: Host, before: Host, *, committed: bool) -> None:
    """The host serves the last good release or the new one, admitted, with nothing pending; nothing when there was
    nothing."""
    good = NEW if committed else before.last_good or (before.baseline if host.current else None)
    assert host.current == host.running == good
    assert host.armed is None and host.confirmed is None
    assert host.wanted == ("running" if good else "stopped")
    if good is not None and (committed or before.admitted):
        assert host.admitted == good


def lengths(make: Callable[[], Host], plan: Plan) -> int:
    host = make()
    assert not interrupted_after(host, 10_000, plan)
    return len(host.journal)


@pytest.mark.parametrize("start", HOSTS)
@pytest.mark.parametrize("verb", ["deploy", "rollback"])
def test_an_interruption_after_any_line_ends_in_the_last_good_or_the_new_release(
    profile: Profile, verb: str, start: str
) -> None:
    plan, make = plans(profile)[verb], HOSTS[start]
    for lines in range(lengths(make, plan)):
        host = make()
        assert interrupted_after(host, lines, plan)
        host.recover("r2", settling="r1")
        committed = any(e["event"] == "committed" and e["release"] == NEW for e in host.journal)
        passed = committed or host.last_good == NEW
        is_whole(host, make(), committed=passed)


@pytest.mark.parametrize("start", HOSTS)
def test_an_interruption_inside_the_recovery_is_recovered_from_as_well(profile: Profile, start: str) -> None:
    plan, make = deploy_plan(NEW, profile, fallback=BASE), HOSTS[start]
    cut = 0
    for lines in range(lengths(make, plan)):
        for more in range(40):
            host = make()
            interrupted_after(host, lines, plan)
            host.lines_left = more
            try:
                host.recover("r2", settling="r1")
                break
            except Interrupted:
                cut += 1
            host.lines_left = None
            host.recover("r3", settling="r2")
            is_whole(host, make(), committed=host.last_good == NEW)
    assert cut > lengths(make, plan)


@pytest.mark.parametrize("reason", ["deadline", "boot"])
@pytest.mark.parametrize("start", HOSTS)
def test_the_guard_alone_brings_the_host_back_from_every_line(profile: Profile, start: str, reason: str) -> None:
    plan, make = deploy_plan(NEW, profile, fallback=BASE), HOSTS[start]
    for lines in range(lengths(make, plan)):
        host = make()
        interrupted_after(host, lines, plan)
        host.guard(reason)
        assert host.armed is None and host.confirmed is None
        assert host.current == host.running
        assert host.current in {make().last_good, make().baseline, NEW if host.last_good == NEW else None}


def test_what_the_guard_restored_is_not_undone_again_by_the_next_command(profile: Profile) -> None:
    plan = deploy_plan(NEW, profile, fallback=BASE)
    for lines in range(lengths(serving, plan)):
        host = serving()
        interrupted_after(host, lines, plan)
        if host.armed is None and host.confirmed is None:
            continue
        host.guard("deadline")
        assert host.recovery().plan.kinds() == (), f"after {lines} lines"


def test_recovering_twice_is_the_same_as_recovering_once(profile: Profile) -> None:
    plan = deploy_plan(NEW, profile, fallback=BASE)
    for lines in range(lengths(serving, plan)):
        host = serving()
        interrupted_after(host, lines, plan)
        host.recover("r2", settling="r1")
        once = (host.current, host.running, host.admitted, host.last_good, host.wanted)
        host.recover("r3", settling="r1")
        assert (host.current, host.running, host.admitted, host.last_good, host.wanted) == once


@pytest.mark.parametrize("kind", ["stage", "arm", "drain", "stop", "activate", "start", "gate", "confirm"])
def test_a_step_that_fails_before_the_commit_point_leaves_the_old_release_serving(profile: Profile, kind: str) -> None:
    host = serving()
    host.fails_at = kind
    host.begin("r1", Purpose.CANDIDATE, NEW)
    with pytest.raises(RuntimeError):
        host.perform("r1", deploy_plan(NEW, profile, fallback=BASE))
    found = host.recover("r1")
    assert not found.committed
    is_whole(host, serving(), committed=False)


def test_a_server_that_was_never_stopped_is_not_restarted(profile: Profile) -> None:
    host = serving()
    host.fails_at = "drain"
    host.begin("r1", Purpose.CANDIDATE, NEW)
    with pytest.raises(RuntimeError):
        host.perform("r1", deploy_plan(NEW, profile, fallback=BASE))
    assert host.recovery().plan.kinds() == ("disarm", "admit")


def test_a_server_that_took_no_traffic_before_gets_none_from_going_back(profile: Profile) -> None:
    host = serving()
    host.admitted = None
    host.fails_at = "drain"
    host.begin("r1", Purpose.CANDIDATE, NEW)
    with pytest.raises(RuntimeError):
        host.perform("r1", deploy_plan(NEW, profile, fallback=BASE))
    assert host.recovery().plan.kinds() == ("disarm",)


def test_a_failed_way_back_is_tried_again_by_whoever_fails_next(profile: Profile) -> None:
    host = serving()
    host.begin("r1", Purpose.CANDIDATE, NEW)
    host.fails_at = "gate"
    with pytest.raises(RuntimeError):
        host.perform("r1", deploy_plan(NEW, profile, fallback=BASE))
    host.write("r1", "run-ended", outcome="unsafe")
    host.fails_at = "stage"
    host.begin("r2", Purpose.CANDIDATE, "other-3")
    with pytest.raises(RuntimeError):
        host.perform("r2", deploy_plan("other-3", profile, fallback=BASE))
    host.recover("r2")
    is_whole(host, serving(), committed=False)


@pytest.mark.parametrize(("failed", "target"), [(BASE, None), (NEW, BASE)])
def test_a_first_baseline_that_fails_does_not_go_back_to_itself(failed: str, target: str | None) -> None:
    """Seen with the real engine: it was started a second time, died a second time, and the host was left unsafe."""
    story = [
        {"event": "run-started", "release": failed, "purpose": "candidate"},
        {"event": "step-started", "step": {"kind": "stop"}},
    ]
    links = Links(current=failed, last_good=None, baseline=BASE, pending=failed)
    found = recovery(story, links, None, None, 600.0)
    assert found.target == target
    assert ("start" in found.plan.kinds()) is (target is not None)


def test_a_stop_on_purpose_that_died_half_way_does_not_start_the_server_again() -> None:
    host = serving()
    host.begin("r1", Purpose.CONTROL, OLD)
    host.perform("r1", stop_plan())
    assert host.recovery().plan.kinds() == ()
    assert start_plan(OLD).kinds() == ("start", "gate", "admit")


def test_the_guard_waits_for_everything_that_a_run_may_wait_for(profile: Profile) -> None:
    timeouts = profile.timeouts
    longest = timeouts.drain_timeout_s + timeouts.stop_timeout_s + timeouts.load_timeout_s + timeouts.gate_timeout_s
    assert guard_deadline_s(profile) > longest
