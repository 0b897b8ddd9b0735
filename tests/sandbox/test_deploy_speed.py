"""Speed inside `ops deploy`: if this fails, a slower server takes traffic, or a faster one is refused.

Runs alone on a quiet machine: a busy one shows as a slow server, the more the higher the time scale. Noise is off.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from gate_host import GateHost, baseline_serves

pytestmark = [pytest.mark.sandbox, pytest.mark.timing, pytest.mark.timeout(400)]

TIME_SCALE = 5.0


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[GateHost]:
    folder = tmp_path_factory.mktemp("speed") / "project"
    with baseline_serves(folder, repository, {}, TIME_SCALE) as made:
        yield made


@pytest.fixture(autouse=True)
def healed(host: GateHost) -> Iterator[None]:
    yield
    host.heal()


@pytest.mark.parametrize("fault", ["slow-20-percent", "ttft-worse", "loses-under-load"])
def test_a_slower_server_is_refused_by_speed(host: GateHost, fault: str) -> None:
    host.box.fault(fault)

    done = host.deploy()

    assert (done.code, host.first_problem(done)) == (3, "speed"), done.stdout
    assert host.ops("status").host["profile"] == "baseline"


@pytest.mark.parametrize("nccl", ["pcie-blackwell-ll", "default"])
def test_five_steps_fail_on_speed_with_either_nccl_set(host: GateHost, nccl: str) -> None:
    host.add("five", {"extends": "eagle3-5step", "nccl": nccl})

    done = host.deploy("five")

    speed = next(c for c in done.host["gate"]["checks"] if c["name"] == "speed")
    assert (done.code, speed["outcome"]) == (3, "fail"), done.stdout


def test_two_percent_slower_and_still_faster_than_the_baseline_is_admitted(host: GateHost) -> None:
    host.box.fault("slow-2-percent")

    done = host.deploy()

    assert done.code == 0, done.stdout


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_healthy_server_passes_twenty_of_twenty_times(host: GateHost) -> None:
    assert host.deploy().code == 0
    assert [host.ops("gate").code for _ in range(20)] == [0] * 20


def test_another_profile_without_speculation_is_measured_for_itself_and_becomes_the_baseline(host: GateHost) -> None:
    """Compared with the old baseline it would have to be as fast; it may be chosen for its memory."""
    host.add("leaner", {"extends": "baseline", "engine": {"max_running_requests": 16}})
    before = host.link("baseline")

    done = host.deploy("leaner")

    assert done.code == 0, done.stdout
    speed = next(c for c in done.host["gate"]["checks"] if c["name"] == "speed")
    assert "first measurement" in speed["message"]
    assert host.link("baseline") == done.host["release"] != before
