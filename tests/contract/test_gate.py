"""The gate against a running server: release, launch.sh, processes and HTTP are real, the engine is simulated.

If these fail, a deploy admits a server with one of these faults, or refuses one that is fine, or reports the wrong
reason to the person who has to mend it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_bench import free_port
from gate_rig import GPUS, Rig

from ops.gates import agreement, baseline
from ops.gates.runner import run_gate
from ops.model.gate import BaselineKey, BaselineRecord, GateReport, Stored, Subset
from ops.model.verdict import Outcome

pytestmark = pytest.mark.timing

MEASURED = 8


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(tmp_path_factory.mktemp("gate"), scale=10.0).lay_down()


@pytest.fixture(autouse=True)
def whole(rig: Rig) -> Iterator[None]:
    yield
    rig.simulate()


@pytest.fixture(scope="module")
def yardstick(rig: Rig) -> BaselineRecord:
    """Measure the baseline; 8 runs a concurrency stand five times for the 40 of a real record, to save time."""
    with rig.serving(rig.profile("baseline", free_port())) as served:
        server = served.server()
        answers = agreement.answers(server)
        runs = {c: tuple(baseline.measured(server, c, MEASURED)) for c in (1, 8)}
    return BaselineRecord(
        key=BaselineKey(
            gpu_uuids=tuple(str(d["uuid"]) for d in GPUS["devices"]),
            driver="575.57.08",
            stack_lock_sha256="",
            target_sha256="",
            release=served.release.id,
            prompt_set_sha256=baseline.prompt_set_digest(),
            concurrency=(1, 8),
        ),
        profile="baseline",
        measured_at="2026-01-01T00:00:00+00:00",
        runs={c: measured * (baseline.RUNS // MEASURED) for c, measured in runs.items()},
        reference_ids={name: c.output_ids for name, c in answers.items()},
    )


def gate(
    rig: Rig,
    yardstick: BaselineRecord,
    *,
    fault: str | dict[str, Any] | None = None,
    profile: str = "eagle3-2step",
    subset: Subset = Subset.DEPLOY,
    tolerated: tuple[int, ...] = (),
    **changes: Any,
) -> GateReport:
    if fault is not None:
        rig.fault(fault)
    chosen = rig.profile(profile, free_port(), **changes)
    with rig.serving(chosen, Stored(baseline=yardstick), tolerated) as served:
        return run_gate(served.server(), subset)


def test_a_healthy_server_passes_every_check_and_leaves_what_it_learned(rig: Rig, yardstick: BaselineRecord) -> None:
    report = gate(rig, yardstick)
    assert report.outcome is Outcome.PASS, report.first_problem
    assert [v.name for v in report.verdicts if not v.passed] == ["software"], "only a locked stack is asked for it"
    assert {key.partition("/")[0] for key in report.learned} == {"digest", "accept_length", "speed"}
    assert 1.7 < report.figures["accept_length"] < 1.82  # type: ignore[operator]
    assert report.seconds < 250


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("health-ok-generation-hangs", "generation"),
        ("garbage-output", "generation"),
        ("wrong-wiring", "wiring"),
        ("silent-draft-token-change", "effective-config"),
        ("running-requests-capped", "effective-config"),
        ("env-lost-in-ranks", "environment"),
        ("accept-collapse", "acceptance"),
        ("long-context-crash", "long-context"),
        ("truncated-streams", "soak"),
        ("dies-after-100-requests", "soak"),
        ("slow-20-percent", "speed"),
        ("ttft-worse", "speed"),
        ("loses-under-load", "speed"),
    ],
)
def test_a_fault_is_refused_under_the_name_of_its_check(
    rig: Rig, yardstick: BaselineRecord, fault: str, named: str
) -> None:
    report = gate(rig, yardstick, fault=fault)
    assert report.outcome is Outcome.FAIL
    assert report.first_problem is not None
    assert report.first_problem.name == named, report.first_problem
    assert report.first_problem.remedy


def test_a_dead_scheduler_behind_a_living_http_server_is_refused(rig: Rig, yardstick: BaselineRecord) -> None:
    report = gate(rig, yardstick, fault="scheduler-dead-http-alive", tolerated=(503,))
    assert report.first_problem is not None
    assert report.first_problem.name in ("alive", "health")


def test_adaptive_steps_that_were_dropped_silently_are_refused(rig: Rig, yardstick: BaselineRecord) -> None:
    wanted = {"adaptive": True, "steps": 3, "draft_tokens": 4}
    report = gate(rig, yardstick, fault="adaptive-off-silently", speculation=wanted)
    assert report.first_problem is not None
    assert report.first_problem.name == "effective-config"
    assert "speculative_adaptive" in report.first_problem.message


def test_a_fault_without_a_name_is_refused_as_well(rig: Rig, yardstick: BaselineRecord) -> None:
    report = gate(rig, yardstick, fault={"garbage": "noise", "ttft_factor": 1.2, "accept_factor": 0.9})
    assert report.outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("fault", "tolerated"),
    [("busy-503", (503,)), ("cold-first-requests", ()), ("stale-accept-metric", ()), ("prefix-cache-warm", ())],
)
def test_what_only_looks_bad_is_not_refused(
    rig: Rig, yardstick: BaselineRecord, fault: str, tolerated: tuple[int, ...]
) -> None:
    report = gate(rig, yardstick, fault=fault, subset=Subset.ROLLBACK, tolerated=tolerated)
    assert report.outcome is Outcome.PASS, report.first_problem


def test_two_percent_slower_is_admitted_and_the_drift_is_said(rig: Rig, yardstick: BaselineRecord) -> None:
    port = free_port()
    rig.fault("slow-2-percent")
    with rig.serving(rig.profile("eagle3-2step", port), Stored(baseline=yardstick)) as served:
        first_good = {f"speed/{_stack(served.release.manifest)}/{served.release.id}/{c}": r for c, r in _first_good()}
        served.stored = Stored(baseline=yardstick, expectations=first_good)
        report = run_gate(served.server())
    assert report.outcome is Outcome.PASS, report.first_problem
    assert any("slower than when first good" in note for note in report.notes)


def test_five_steps_are_slower_than_the_baseline_and_fail_on_speed(rig: Rig, yardstick: BaselineRecord) -> None:
    report = gate(rig, yardstick, profile="eagle3-5step")
    assert report.first_problem is not None
    assert (report.first_problem.name, report.outcome) == ("speed", Outcome.FAIL)


def test_without_a_yardstick_a_speculative_profile_is_inconclusive(rig: Rig) -> None:
    with rig.serving(rig.profile("eagle3-2step", free_port())) as served:
        report = run_gate(served.server())
    assert report.outcome is Outcome.INCONCLUSIVE
    assert report.first_problem is not None
    assert "never measured" in report.first_problem.message


def test_a_real_orphan_on_the_port_is_refused_as_not_itself(
    rig: Rig, yardstick: BaselineRecord, tmp_path: Path
) -> None:
    """The old server answers on the port; the new one's bind failed, or never happened."""
    other = Rig(tmp_path / "orphan", scale=10.0)
    other.folder.mkdir()
    other.lay_down()
    port = free_port()
    with (
        other.serving(other.profile("eagle3-2step", port)),
        rig.serving(rig.profile("eagle3-2step", free_port()), Stored(baseline=yardstick)) as served,
    ):
        served.profile = rig.profile("eagle3-2step", port)
        report = run_gate(served.server())
    assert report.first_problem is not None
    assert report.first_problem.name == "itself"
    assert "another process" in report.first_problem.message


def _stack(manifest: dict[str, Any]) -> str:
    from ops.gates import wanted

    return wanted.stack_digest(manifest)


def _first_good() -> list[tuple[int, float]]:
    """Rates of a healthy server by concurrency, as the gate counts them (decode alone; batch as a whole)."""
    return [(1, 96.1), (8, 354.0)]
