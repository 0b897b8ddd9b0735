"""The gate inside `ops deploy`: if this fails, a server with that fault takes traffic, or a good one is refused.

Noise is off, so every refusal has its fault as the only reason. Faults that show in figures of speed are in
`test_deploy_speed.py`, which runs alone.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from gate_host import GateHost, baseline_serves

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(240)]

TIME_SCALE = 20.0
NO_SPEED = {"speed": "figures of speed need a quiet machine; they have their own tests"}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[GateHost]:
    folder = tmp_path_factory.mktemp("gated") / "project"
    with baseline_serves(folder, repository, NO_SPEED, TIME_SCALE) as made:
        yield made


@pytest.fixture(autouse=True)
def healed(host: GateHost) -> Iterator[None]:
    """Each test begins with the baseline serving and no fault set."""
    yield
    host.heal()


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("wrong-wiring", {"wiring"}),
        ("accept-collapse", {"acceptance"}),
        ("garbage-output", {"generation"}),
        ("health-ok-generation-hangs", {"generation"}),
        ("scheduler-dead-http-alive", {"alive", "health"}),
        ("orphan-on-port", {"itself"}),
        ("env-lost-in-ranks", {"environment"}),
        ("silent-draft-token-change", {"effective-config"}),
        ("running-requests-capped", {"effective-config"}),
        ("dies-after-100-requests", {"soak"}),
        ("long-context-crash", {"long-context"}),
        ("truncated-streams", {"soak"}),
    ],
)
def test_a_faulty_release_is_refused_by_the_check_it_belongs_to(host: GateHost, fault: str, check: set[str]) -> None:
    host.box.fault(fault)

    done = host.deploy()

    assert done.code == 3, done.stdout
    assert host.first_problem(done) in check, done.stdout
    status = host.ops("status").host
    assert (status["state"], status["profile"], status["admitted"]) == ("serving", "baseline", True), status


def test_adaptive_speculation_that_is_silently_off_is_refused(host: GateHost) -> None:
    host.add("adaptive", {"extends": "eagle3-3step", "speculation": {"adaptive": True}})
    host.box.fault("adaptive-off-silently")

    done = host.deploy("adaptive")

    assert (done.code, host.first_problem(done)) == (3, "effective-config"), done.stdout


def test_a_fault_without_a_name_is_refused_too(host: GateHost) -> None:
    host.box.fault("unnamed", knobs={"accept_factor": 0.7, "garbage": False})

    done = host.deploy()

    assert (done.code, host.first_problem(done)) == (3, "acceptance"), done.stdout


@pytest.mark.parametrize("fault", ["busy-503", "stale-accept-metric", "cold-first-requests", "prefix-cache-warm"])
def test_what_is_no_fault_is_not_refused(host: GateHost, fault: str) -> None:
    host.box.fault(fault)

    done = host.deploy()

    assert done.code == 0, done.stdout
    assert done.document["outcome"] == "deployed"
    assert [f["claimed_by"] for f in host.box.state().faults] == [host.link("current")], "the fault struck nobody"


def test_a_wiring_mismatch_at_preflight_touches_nothing(host: GateHost) -> None:
    host.add("miswired", {"extends": "eagle3-2step", "speculation": {"draft": {"layer_ids": [1, 29, 57]}}})

    done = host.deploy("miswired")

    assert done.code == 2
    assert "[1, 29, 57]" in done.host["message"] and "[2, 30, 58]" in done.host["message"]
