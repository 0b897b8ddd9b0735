"""Readings of a host's journal, markers and lock. If this breaks, a command settles what was settled, leaves open what
a dead client left, or calls a hanging server healthy."""

from typing import Any

import pytest

from ops.flows.status import describe
from ops.model.inventory import HostSpec
from ops.model.state import Owner, armed, host_ended, last_committed, last_step, open_runs, owner, story

SPEC = HostSpec(name="gpu-a", address="10.0.0.1")


def event(kind: str, run: str = "r1", **fields: Any) -> dict[str, Any]:
    return {"at": 1.0, "run": run, "event": kind, **fields}


def started(run: str = "r1") -> dict[str, Any]:
    return event("run-started", run, purpose="candidate", release="new-2", admitted=True)


def step(kind: str, run: str = "r1") -> dict[str, Any]:
    return event("step-started", run, step={"kind": kind, "args": {}}, recovery=False)


def test_a_run_that_ended_well_leaves_no_story() -> None:
    assert story([started(), step("stop"), event("run-ended", outcome="done")]) == []
    assert open_runs([started(), event("run-ended", outcome="rolled-back")]) == []


@pytest.mark.parametrize("kind", ["restored", "confirmed-late"])
def test_what_the_host_ended_itself_is_closed_whoever_armed_it(kind: str) -> None:
    journal = [started("r1"), step("stop"), event("lock-taken", "r2", dead_run="r1"), event(kind, "r2")]
    assert story(journal) == [] and open_runs(journal) == []
    assert host_ended(journal, "r2") == kind and host_ended(journal, "r1") is None


def test_a_dead_run_and_whoever_died_settling_it_are_open() -> None:
    journal = [started("r1"), step("stop", "r1"), event("lock-taken", "r2", dead_run="r1"), step("rearm", "r2")]
    assert open_runs(journal) == ["r1", "r2"]
    assert [e["event"] for e in story(journal)] == ["run-started", "step-started", "lock-taken", "step-started"]


def test_a_run_that_ended_unsafe_is_told_further_but_is_not_open() -> None:
    journal = [started(), step("stop"), event("run-ended", outcome="unsafe")]
    assert open_runs(journal) == []
    assert [e["event"] for e in story(journal)] == ["run-started", "step-started", "run-ended"]


def test_an_unsafe_end_after_the_commit_point_closes_the_story() -> None:
    journal = [started(), step("stop"), event("committed", release="new-2"), event("run-ended", outcome="unsafe")]
    assert story(journal) == []


def test_the_last_commit_point_counts() -> None:
    assert last_committed([event("committed", release="a-1"), event("committed", release="b-2")]) == "b-2"
    assert last_committed([started()]) is None


def test_lines_of_the_host_and_of_gates_are_no_story() -> None:
    journal = [event("engine-exit"), event("gated", release="a-1", outcome="pass"), event("fallback", release="b-0")]
    assert story(journal) == []


def facts(**changes: Any) -> dict[str, Any]:
    guard = dict.fromkeys(("armed", "armed.client", "fired", "confirmed", "started")) | {"wanted": "running"}
    pid = {"pid": 7, "release": "old-1", "title": "python -m sglang.launch_server", "environ": {}}
    found: dict[str, Any] = {
        "time": 1000.0,
        "links": {"current": "old-1", "last-good": "old-1", "baseline": "base-0", "pending": None},
        "manifests": {},
        "guard": guard,
        "journal": [],
        "lock": None,
        "admitted": {"release": "old-1"},
        "engine": {"state": "running", "pid": 7, "started_at": 900.0, "enabled": True, "detail": ""},
        "processes": [pid],
        "listeners": [{"port": 8000, "address": "10.0.0.1", "pid": 7, "title": "", "user": "ops"}],
        "http": {"ready": 200, "server_info": None, "loads": None},
    }
    return found | changes


def state_of(**changes: Any) -> str:
    return str(describe(SPEC, facts(**changes)).outcome)


def marker(release: str, deadline: float = 1030.0) -> dict[str, str]:
    return {"RUN": "r1", "RELEASE": release, "DEADLINE": str(int(deadline)), "BOOT": "b"}


def test_a_server_that_answers_serves_and_is_good() -> None:
    result = describe(SPEC, facts())
    assert result.outcome == "serving" and result.details["good"]


def test_a_server_that_listens_and_gives_no_answer_hangs() -> None:
    assert state_of(http={"ready": None}) == "unresponsive"


def test_a_server_that_does_not_listen_yet_is_starting() -> None:
    assert state_of(http={"ready": None}, listeners=[]) == "starting"
    assert state_of(http={"ready": 503}) == "starting"


def test_a_supervisor_that_waits_between_two_crashes_has_no_server() -> None:
    waiting = {"state": "starting", "pid": None, "started_at": None, "enabled": True, "detail": "Exited too quickly"}
    assert state_of(engine=waiting, http=None) == "down"


def test_processes_of_two_releases_are_called_mixed() -> None:
    two = [{"pid": n, "release": r, "title": "", "environ": {}} for n, r in ((7, "old-1"), (8, "new-2"))]
    assert state_of(processes=two) == "mixed"


def test_a_pending_release_says_when_the_guard_acts_and_where_it_goes() -> None:
    guard = facts()["guard"] | {"armed": marker("new-2")}
    result = describe(SPEC, facts(guard=guard))
    assert result.outcome == "pending"
    assert "in 30 s the guard goes back to old-1" in result.message and not result.details["good"]


def test_a_server_without_traffic_is_not_good() -> None:
    result = describe(SPEC, facts(admitted=None))
    assert "takes no traffic" in result.message and not result.details["good"]


def test_a_fall_back_is_told_until_a_gate_passes() -> None:
    fell = event("fallback", release="old-1", reason="crash-loop")
    assert "fell back to old-1" in describe(SPEC, facts(journal=[fell])).message
    passed = event("gated", release="old-1", outcome="pass", subset="deploy")
    assert describe(SPEC, facts(journal=[fell, passed])).details["good"]


def lock(**changes: Any) -> dict[str, Any]:
    found = {"owner": "ann", "host": "elsewhere", "pid": 1, "pid_start": 2, "run": "r1", "since": 0.0, "message": "m"}
    return found | {"heartbeat_age_s": 1.0} | changes


@pytest.mark.parametrize(
    ("held", "lives", "expected"),
    [
        (lock(heartbeat_age_s=14.0), False, Owner.ALIVE),
        (lock(heartbeat_age_s=16.0), True, Owner.DEAD),
        (lock(place="here", heartbeat_age_s=999.0), True, Owner.ALIVE),
        (lock(place="here", heartbeat_age_s=0.0), False, Owner.DEAD),
        (lock(host="here", place="a container of that name", heartbeat_age_s=1.0), False, Owner.ALIVE),
        (None, True, Owner.NONE),
    ],
)
def test_an_owner_is_judged_by_its_pid_where_it_runs_and_by_its_heartbeat_elsewhere(
    held: dict[str, Any] | None, lives: bool, expected: Owner
) -> None:
    assert owner({"lock": held}, here="here", alive=lambda pid, start: lives) is expected


def test_a_dead_lock_is_explained() -> None:
    dead = lock(heartbeat_age_s=99.0)
    told = describe(SPEC, facts(lock=dead)).details["lock"]
    assert not told["alive"] and "the next command takes it over" in told["meaning"]
    guard = facts()["guard"] | {"armed": marker("new-2")}
    told = describe(SPEC, facts(lock=dead, guard=guard)).details["lock"]
    assert "the guard undoes new-2 in 30 s" in told["meaning"]


def test_whichever_marker_carries_it_a_release_is_pending() -> None:
    for name in ("armed", "armed.client", "fired"):
        found = armed(facts(guard=facts()["guard"] | {name: marker("new-2")}))
        assert found is not None and found.release == "new-2"


def test_the_number_of_the_last_step_is_that_runs_own() -> None:
    journal = [event("step-started", run, seq=seq) for run, seq in (("r1", 1), ("r2", 7), ("r1", 2))]
    journal.append(event("step-failed", "r1", seq=9))
    assert [last_step(journal, run) for run in ("r1", "r2", "r3")] == [2, 7, 0]
