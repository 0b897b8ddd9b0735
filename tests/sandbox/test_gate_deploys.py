"""The gate inside `ops deploy`: if this fails, a server with that fault takes traffic, or a good one is refused.

Noise is off, so every refusal has its fault as the only reason. Faults that show in figures of speed are in
`test_gate_speed.py`, which runs alone.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rig import Client, Done

from ops.sandbox.host import Sandbox

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(240), pytest.mark.xdist_group("gate-deploys")]

TIME_SCALE = 20.0
NO_SPEED = {"speed": "figures of speed need a quiet machine; they have their own tests"}


class GateHost:
    """A measured host whose baseline serves, and deploys to it."""

    def __init__(self, folder: Path, repository: Path, skip: dict[str, str], time_scale: float) -> None:
        self.project = folder
        shutil.copytree(repository / "envs", folder / "envs")
        profile = folder / "envs" / "profiles" / "baseline.yaml"
        text = yaml.safe_load(profile.read_text())
        text["gates"] = {"skip": skip}
        profile.write_text(yaml.safe_dump(text))
        self.box = Sandbox.up("gated", project=folder, time_scale=time_scale, noise="off", load_s=2)
        shutil.copy(self.box.inventory, folder / "envs" / "hosts.yml")

    def ops(self, *argv: str) -> Done:
        return Client([*argv, "--host", "gated", "--json"], self.project).wait(within_s=200)

    def deploy(self, profile: str = "eagle3-2step") -> Done:
        return self.ops("deploy", "--profile", profile)

    def first_problem(self, done: Done) -> str:
        checks: list[dict[str, Any]] = done.host["gate"]["checks"]
        failed = [c["name"] for c in checks if c["outcome"] == "fail"]
        return (failed or [c["name"] for c in checks if c["outcome"] == "inconclusive"])[0]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[GateHost]:
    made = GateHost(tmp_path_factory.mktemp("gated") / "project", repository, NO_SPEED, TIME_SCALE)
    try:
        done = made.deploy("baseline")
        assert done.code == 0, done.stderr
        yield made
    finally:
        made.box.down()


@pytest.fixture(autouse=True)
def healed(host: GateHost) -> Iterator[None]:
    """Each test begins with the baseline serving and no fault set."""
    yield
    host.box.clear_faults()
    if host.ops("status").host["profile"] != "baseline":
        assert host.ops("rollback", "--to", "baseline").code == 0


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

    assert done.code == 3, done.stderr
    assert host.first_problem(done) in check, done.stderr
    status = host.ops("status").host
    assert (status["state"], status["profile"], status["admitted"]) == ("serving", "baseline", True), status


def test_adaptive_speculation_that_is_silently_off_is_refused(host: GateHost) -> None:
    profile = {
        "extends": "eagle3-3step",
        "speculation": {"adaptive": True},
    }
    (host.project / "envs" / "profiles" / "adaptive.yaml").write_text(yaml.safe_dump(profile))
    host.box.fault("adaptive-off-silently")

    done = host.deploy("adaptive")

    assert (done.code, host.first_problem(done)) == (3, "effective-config"), done.stderr


def test_a_fault_without_a_name_is_refused_too(host: GateHost) -> None:
    host.box.fault("unnamed", knobs={"accept_factor": 0.7, "garbage": False})

    done = host.deploy()

    assert (done.code, host.first_problem(done)) == (3, "acceptance"), done.stderr


@pytest.mark.parametrize("fault", ["busy-503", "stale-accept-metric", "cold-first-requests", "prefix-cache-warm"])
def test_what_is_no_fault_is_not_refused(host: GateHost, fault: str) -> None:
    host.box.fault(fault)

    done = host.deploy()

    assert done.code == 0, done.stderr
    assert done.document["outcome"] == "deployed"


def test_a_wiring_mismatch_at_preflight_touches_nothing(host: GateHost) -> None:
    profile = {"extends": "eagle3-2step", "speculation": {"draft": {"layer_ids": [1, 29, 57]}}}
    (host.project / "envs" / "profiles" / "miswired.yaml").write_text(yaml.safe_dump(profile))

    done = host.deploy("miswired")

    assert done.code == 2
    assert "[1, 29, 57]" in done.stderr and "[2, 30, 58]" in done.stderr
