"""A reboot must not cost what was tuned: the story lost its NCCL variables at one, and nobody noticed for a day.

If these fail, a host that an operator rebooted serves slower, serves another release, or does not serve at all.
Case NCCL-02, with test_docker_runtime.py (`docker restart`) and test_verify.py (who is told what).
"""

from pathlib import Path

import pytest

from ops.sandbox.engine.install import Simulation

from .conftest import MakeHost
from .hosts import Host
from .product import (
    PROFILE,
    Operator,
    events,
    links,
    ranks,
    tokens_per_second,
    wait_serving,
)

pytestmark = pytest.mark.lab

TUNED = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}
SAME_RATE = 0.03


def assert_tuned_in_every_rank(host: Host) -> None:
    found = ranks(host)
    assert len(found) == 8
    for pid, environ in found.items():
        assert TUNED.items() <= environ.items(), f"rank {pid} holds {environ}"


@pytest.mark.parametrize("kind", ["systemd", "supervisord"])
def test_after_a_reboot_behind_the_tools_back_every_rank_is_tuned_and_as_fast_as_before(
    make_host: MakeHost, tmp_path: Path, kind: str
) -> None:
    host = make_host(kind, simulation=Simulation(time_scale=5))
    operator = Operator.of(tmp_path / "project", host)
    release = operator.deploy(host)
    before, old_ranks = tokens_per_second(host), set(ranks(host))

    host.reboot()
    wait_serving(host)

    assert_tuned_in_every_rank(host)
    after = tokens_per_second(host)
    assert abs(after - before) / before < SAME_RATE, f"{before:.1f} tok/s before, {after:.1f} after"
    assert links(host)["current"] == release
    answer = operator.ops("verify", "--host", host.name)
    assert answer.code == 0, answer
    assert answer.host["outcome"] == "holds"
    started = [p for p in ranks(host) if p in old_ranks]
    assert len(started) < 8, "the same processes as before: nothing was rebooted"


def test_without_the_set_the_ranks_really_are_slower_so_the_comparison_can_fail(
    make_host: MakeHost, tmp_path: Path
) -> None:
    host = make_host("systemd", simulation=Simulation(time_scale=5))
    operator = Operator.of(tmp_path / "project", host)
    operator.deploy(host)
    tuned = tokens_per_second(host)
    host.exec("sed", "-i", "/^NCCL_/d", "/opt/ops/default/current/engine.env")

    host.reboot()
    wait_serving(host)

    assert tokens_per_second(host) < tuned * 0.85
    answer = operator.ops("verify", "--host", host.name)
    assert answer.code == 6, answer
    assert {"environment", "release-files"} <= answer.wanting()
    assert all(name in answer.check("environment")["message"] for name in TUNED)


def test_host_reboot_verify_takes_the_host_out_reboots_proves_and_lets_it_in_again(
    make_host: MakeHost, tmp_path: Path
) -> None:
    host = make_host("systemd", simulation=Simulation(time_scale=20))
    operator = Operator.of(tmp_path / "project", host)
    release = operator.deploy(host)
    boot = host.boot_id()

    answer = operator.ops("host", "reboot", "--verify", "--host", host.name)

    assert answer.code == 0, answer
    assert host.boot_id() != boot
    assert (answer.host["outcome"], answer.host["release"]) == ("rebooted", release)
    assert_tuned_in_every_rank(host)
    run = [e for e in events(host) if e.get("run") == events(host)[-1]["run"]]
    done = [e["step"]["kind"] for e in run if e["event"] == "step-done"]
    assert done == ["drain", "reboot", "start", "verify", "gate", "admit"]
    status = operator.ops("status", "--host", host.name)
    assert status.host["admitted"], status


def test_host_reboot_verify_keeps_a_host_out_of_traffic_that_came_back_changed(
    make_host: MakeHost, tmp_path: Path
) -> None:
    host = make_host("systemd", simulation=Simulation(time_scale=20))
    operator = Operator.of(tmp_path / "project", host)
    operator.deploy(host)
    host.exec("sed", "-i", "s/^NCCL_PROTO=.*/NCCL_PROTO=Simple/", "/opt/ops/default/current/engine.env")

    answer = operator.ops("host", "reboot", "--verify", "--host", host.name)

    assert answer.code == 4, answer
    assert "engine.env" in answer.host["message"]
    status = operator.ops("status", "--host", host.name)
    assert not status.host["admitted"], status


def test_a_host_without_systemd_is_not_rebooted_and_says_who_can(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host("supervisord", simulation=Simulation(time_scale=20))
    operator = Operator.of(tmp_path / "project", host)
    operator.deploy(host)
    running = set(ranks(host))

    answer = operator.ops("host", "reboot", "--verify", "--host", host.name)

    assert answer.code == 2, answer
    assert "cannot reboot itself" in answer.host["message"]
    assert set(ranks(host)) == running


@pytest.mark.parametrize("kind", ["systemd", "supervisord"])
def test_a_power_cut_after_a_good_deploy_changes_nothing(make_host: MakeHost, tmp_path: Path, kind: str) -> None:
    host = make_host(kind, simulation=Simulation(time_scale=20))
    operator = Operator.of(tmp_path / "project", host)
    release = operator.deploy(host, PROFILE)

    host.power_cut()
    wait_serving(host)

    assert_tuned_in_every_rank(host)
    assert links(host)["current"] == links(host)["last-good"] == release
    assert operator.ops("verify", "--host", host.name).code == 0


def test_a_stopped_server_stays_stopped_over_a_reboot(make_host: MakeHost, tmp_path: Path) -> None:
    for kind in ("systemd", "supervisord"):
        host = make_host(kind, simulation=Simulation(time_scale=20))
        operator = Operator.of(tmp_path / kind, host)
        operator.deploy(host)
        assert operator.ops("stop", "--host", host.name).code == 0

        host.reboot()

        assert operator.ops("status", "--host", host.name).host["outcome"] == "stopped"
        assert ranks(host) == {}
