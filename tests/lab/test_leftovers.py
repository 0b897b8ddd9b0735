"""What an engine leaves behind is cleaned when it is ours, and only named when it is not.

If these fail, a start runs out of GPU memory because of orphans, or `ops` kills a colleague's job. Case START-02.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ops.sandbox.engine.install import Simulation

from .conftest import MakeHost
from .faults import fault
from .hosts import Host
from .payload import ENGINE_PYTHON
from .product import INSTANCE_DIR, PROFILE, Operator, events, gpu_holders, links, ranks, wait_serving

pytestmark = pytest.mark.lab

SURVIVE = {"orphans_survive": True, "orphan_s": 600}


def until(holds: Callable[[], bool], what: str, deadline_s: float = 30) -> None:
    deadline = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {deadline_s} s: {what}"
        time.sleep(0.2)


def parents(host: Host) -> dict[int, int]:
    """Return each rank's parent."""
    listed = host.exec("ps", "-eo", "pid=,ppid=,args=").splitlines()
    rows = [line.split(None, 2) for line in listed]
    return {int(pid): int(ppid) for pid, ppid, title in rows if title.startswith("sglang::scheduler")}


def start_foreign_engine(host: Host, beside: frozenset[int] = frozenset()) -> int:
    """Start a colleague's engine on GPU 0, without any marker of ours; return its rank's pid."""
    launch = (
        *(ENGINE_PYTHON, "-m", "sglang.launch_server", "--model-path", "/shared/models/Kimi-K2.5"),
        *("--host", "0.0.0.0", "--port", "9000", "--trust-remote-code"),
    )
    as_user = ("setpriv", "--reuid=interactive", "--regid=interactive", "--clear-groups", "env", "-i", "SPT_NOENV=1")
    host.exec("sh", "-c", 'nohup setsid "$@" </dev/null >/tmp/foreign.log 2>&1 &', "sh", *as_user, *launch)
    until(lambda: len(gpu_holders(host) - beside) == 1, "the colleague's engine holds memory")
    return next(iter(set(parents(host)) - beside))


def orphan(host: Host) -> set[int]:
    """Start the release by hand, outside of its supervisor, and kill -9 its launcher; return the ranks left."""
    fault(host.login(), SURVIVE, on=PROFILE)
    launch = f"{INSTANCE_DIR}/current/launch.sh"
    host.exec("sh", "-c", f"nohup setsid sh {launch} </dev/null >/dev/null 2>&1 &")
    wait_serving(host)
    launcher = next(ppid for ppid in parents(host).values() if ppid != 1)
    mine = {pid for pid, ppid in parents(host).items() if ppid == launcher}
    host.exec("kill", "-9", str(launcher))
    until(lambda: {parents(host).get(pid) for pid in mine} == {1}, "the ranks are on PID 1")
    assert len(mine) == 8
    return mine


@pytest.mark.parametrize("kind", ["systemd", "supervisord"])
def test_after_kill_9_of_the_launcher_the_supervisor_brings_one_whole_engine_back(
    make_host: MakeHost, tmp_path: Path, kind: str
) -> None:
    host = make_host(kind, simulation=Simulation(time_scale=20))
    operator = Operator.of(tmp_path / "project", host)
    fault(host.login(), SURVIVE)
    operator.deploy(host)
    old = parents(host)

    host.exec("kill", "-9", str(next(iter(old.values()))))
    until(lambda: len(parents(host)) == 8 and not old.keys() & parents(host).keys(), "new ranks, and only those")
    wait_serving(host)

    answer = operator.ops("verify", "--host", host.name)
    assert answer.code == 0, answer


@pytest.mark.parametrize("kind", ["systemd", "supervisord"])
def test_stop_ends_orphans_of_ours_and_leaves_a_colleagues_engine_alone(
    make_host: MakeHost, tmp_path: Path, kind: str
) -> None:
    host = make_host(kind, simulation=Simulation(time_scale=20))
    operator = Operator.of(tmp_path / "project", host)
    operator.deploy(host)
    assert operator.ops("stop", "--host", host.name).code == 0
    assert gpu_holders(host) == set()
    mine = orphan(host)
    foreign = start_foreign_engine(host, frozenset(mine))

    answer = operator.ops("stop", "--host", host.name)

    assert answer.code == 0, answer
    assert set(parents(host)) == {foreign}
    assert f"left alone: pid {foreign} of interactive" in answer.stderr, answer


@pytest.mark.parametrize("kind", ["systemd", "supervisord"])
def test_deploy_ends_orphans_of_ours_on_its_way(make_host: MakeHost, tmp_path: Path, kind: str) -> None:
    host = make_host(kind, simulation=Simulation(time_scale=20))
    operator = Operator.of(tmp_path / "project", host)
    operator.deploy(host)
    assert operator.ops("stop", "--host", host.name).code == 0
    mine = orphan(host)

    release = operator.deploy(host)

    assert not mine & set(parents(host))
    assert {environ["OPS_RELEASE"] for environ in ranks(host).values()} == {release}
    assert len(ranks(host)) == 8


def test_deploy_refuses_a_gpu_that_a_colleague_holds_names_him_and_kills_nothing(
    make_host: MakeHost, tmp_path: Path
) -> None:
    host = make_host("systemd", simulation=Simulation(time_scale=20))
    operator = Operator.of(tmp_path / "project", host)
    foreign = start_foreign_engine(host)

    answer = operator.ops("deploy", "--profile", "eagle3-2step", "--host", host.name)

    assert answer.code == 2, answer
    assert f"pid {foreign} of interactive (sglang::scheduler" in answer.host["message"]
    assert set(parents(host)) == {foreign}
    assert "absent" in host.exec("sh", "-c", "test -e /opt/ops || echo absent")


@pytest.mark.parametrize("kind", ["systemd", "supervisord"])
def test_a_release_that_dies_again_and_again_gives_way_to_the_baseline_and_status_says_so(
    make_host: MakeHost, tmp_path: Path, kind: str
) -> None:
    host = make_host(kind, simulation=Simulation(time_scale=20))
    operator = Operator.of(tmp_path / "project", host)
    release = operator.deploy(host)
    fault(host.login(), "crash-while-serving", on=PROFILE)

    kill_launcher(host)
    until(lambda: links(host)["current"] != release, "the guard falls back", deadline_s=120)
    wait_serving(host, deadline_s=60)

    baseline = links(host)["baseline"]
    assert links(host)["current"] == baseline
    assert {environ["OPS_RELEASE"] for environ in ranks(host).values()} == {baseline}
    assert [e["count"] for e in events(host) if e["event"] == "engine-exit"] == [1, 2, 3]
    status = operator.ops("status", "--host", host.name)
    assert f"fell back to {baseline} (crash-loop), ungated" in status.host["message"], status
    verified = operator.ops("verify", "--host", host.name)
    assert verified.code == 6, verified
    assert release in verified.check("boot")["message"]


def kill_launcher(host: Host) -> None:
    # The fault may have been faster.
    host.exec("kill", "-9", str(next(iter(parents(host).values()), 2**22)), check=False)


def test_three_restarts_by_hand_are_no_crash_loop(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host("systemd", simulation=Simulation(time_scale=20))
    operator = Operator.of(tmp_path / "project", host)
    release = operator.deploy(host)

    for _ in range(4):
        host.exec("systemctl", "restart", "sglang-default")
        wait_serving(host)

    assert links(host)["current"] == release
    assert "engine-exit" not in [e["event"] for e in events(host)]
