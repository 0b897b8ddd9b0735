"""One model over several hosts: who has which rank, and what each host is given to run.

If this fails, two hosts start the same rank, the ranks of two releases join each other, or a mistake in the inventory
is only found after minutes of loading.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ops.checks.gpus import CHECK as GPUS
from ops.config import load_inventory, load_profile
from ops.errors import ConfigError
from ops.fleet.whole import whole
from ops.flows.status import describe
from ops.gates import all_gates
from ops.gates.alive import LOADED, MET, joined_ruling
from ops.model.inventory import DIST_PORTS, HostSpec, Inventory
from ops.model.release import Release, follows
from ops.model.result import HostResult
from ops.model.verdict import Outcome
from ops.model.verdict import Question as Ask
from tests.unit.release_hosts import rendered

PAIR = """
all:
  hosts:
    gpu-z: {ansible_host: 10.0.0.9, ops_supervisor: systemd}
    gpu-a: {ansible_host: 10.0.0.1, ops_supervisor: systemd}
    alone: {ansible_host: 10.0.0.3, ops_supervisor: systemd}
  children:
    pair:
      hosts: {gpu-a: , gpu-z: }
      vars: {ops_nodes: 2}
"""


def inventory(folder: Path, text: str = PAIR) -> Inventory:
    (folder / "envs").mkdir(exist_ok=True)
    file = folder / "envs" / "hosts.yml"
    file.write_text(text, encoding="utf-8")
    return load_inventory(folder, file)


def releases(project: Path, folder: Path, text: str = PAIR, **overrides: Any) -> list[Release]:
    members = inventory(folder, text).ensemble("pair")
    return [rendered(project, "eagle3-2step", host, overrides) for host in members]


def flag(release: Release, name: str) -> str:
    argv: list[str] = release.manifest["argv"]
    return argv[argv.index(f"--{name}") + 1]


def test_ranks_follow_the_groups_own_order_and_other_hosts_stay_alone(tmp_path: Path) -> None:
    found = inventory(tmp_path)

    assert [(host.name, host.node.rank) for host in found.ensemble("pair") if host.node] == [("gpu-a", 0), ("gpu-z", 1)]
    assert found.ensemble("all") == ()
    assert next(host for host in found.hosts if host.name == "alone").node is None


def test_each_host_is_given_its_rank_and_the_same_meeting_point(shipped_project: Path, tmp_path: Path) -> None:
    first, second = releases(shipped_project, tmp_path)

    assert [flag(r, "nnodes") for r in (first, second)] == ["2", "2"]
    assert [flag(r, "node-rank") for r in (first, second)] == ["0", "1"]
    assert [flag(r, "tp-size") for r in (first, second)] == ["8", "8"]
    meeting = {flag(r, "dist-init-addr") for r in (first, second)}
    assert len(meeting) == 1
    address, _, port = meeting.pop().rpartition(":")
    assert (address, int(port) in DIST_PORTS) == ("10.0.0.1", True)
    for release in (first, second):
        assert "--nnodes 2" in release.file("launch.sh").content.decode()
        assert release.manifest["expect"]["ranks"] == 4
    assert first.manifest["expect"]["server_info"]["nnodes"] == 2
    assert first.id != second.id
    assert first.manifest["node"]["together"] == second.manifest["node"]["together"]
    assert (follows(first.manifest), follows(second.manifest), follows(None)) == (False, True, False)


def test_the_ranks_of_two_releases_meet_at_different_ports(shipped_project: Path, tmp_path: Path) -> None:
    ports = {
        flag(releases(shipped_project, tmp_path, env={"NCCL_DEBUG": level})[0], "dist-init-addr")
        for level in ("INFO", "WARN", "VERSION", "TRACE")
    }

    assert len(ports) > 1


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("10.1.0.1:5000", "10.1.0.1:5000"),
        ("gpu-a.cluster:5000", "gpu-a.cluster:5000"),
        ("'[fd00::1]:5000'", "[fd00::1]:5000"),
    ],
)
def test_a_meeting_point_that_is_written_down_is_used(
    shipped_project: Path, tmp_path: Path, written: str, shown: str
) -> None:
    text = PAIR.replace("{ops_nodes: 2}", f"{{ops_nodes: 2, ops_dist_init_addr: {written}}}")

    assert {flag(r, "dist-init-addr") for r in releases(shipped_project, tmp_path, text)} == {shown}


def test_rendering_a_member_twice_gives_the_same_bytes_and_a_host_alone_has_no_node(
    shipped_project: Path, tmp_path: Path
) -> None:
    once, again = releases(shipped_project, tmp_path), releases(shipped_project, tmp_path)

    assert [(r.id, r.files) for r in once] == [(r.id, r.files) for r in again]
    alone = rendered(shipped_project, "eagle3-2step")
    assert "node" not in alone.manifest
    assert "--nnodes" not in alone.manifest["argv"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("{ops_nodes: 2}", "{ops_nodes: 3}"), "ops_nodes: 3, but the group has 2 hosts (gpu-a, gpu-z)"),
        (("{ops_nodes: 2}", "{ops_nodes: 1}"), "a number of at least 2 is expected"),
        (("{ops_nodes: 2}", "{ops_nodes: two}"), "a number of at least 2 is expected"),
        (("{ops_nodes: 2}", "{ops_dist_init_addr: '10.0.0.1:5000'}"), "means nothing without ops_nodes"),
        (("{ops_nodes: 2}", "{ops_nodes: 2, ops_dist_init_addr: '10.0.0.1:0'}"), "the address of rank 0 is wanted"),
        (("{ops_nodes: 2}", "{ops_nodes: 2, ops_dist_init_addr: 'tcp://a:1'}"), "the address of rank 0 is wanted"),
        (("ansible_host: 10.0.0.1", "ansible_host: 127.0.0.1"), "set ops_dist_init_addr to its address"),
        (("gpu-z: }", "gpu-z: {ops_nodes: 2}}"), "write it into the group's vars"),
        (("{ops_nodes: 2}", "{ops_node: 2}"), "unknown variable; did you mean ops_nodes"),
    ],
)
def test_a_mistake_about_the_group_is_refused_with_its_place(
    tmp_path: Path, change: tuple[str, str], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        inventory(tmp_path, PAIR.replace(*change))

    assert says in refused.value.message
    assert "hosts.yml:" in refused.value.message


def test_a_host_has_one_rank_only(tmp_path: Path) -> None:
    other = "    other:\n      hosts: {gpu-a: , alone: }\n      vars: {ops_nodes: 2}\n"

    with pytest.raises(ConfigError, match="gpu-a: is in two groups with ops_nodes: pair and other"):
        inventory(tmp_path, PAIR + other)


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"tensor_parallel": 7}, "engine.tensor_parallel 7 cannot be shared out over the 2 hosts of group pair"),
        ({"flags": {"nnodes": 2}}, "sets nnodes, which ops renders for each host"),
        ({"flags": {"dist_init_addr": "a:1"}}, "sets dist-init-addr, which ops renders"),
        ({"flags": {"dp-size": 2}}, "tensor parallelism only"),
    ],
)
def test_a_profile_that_cannot_be_shared_out_is_refused(
    shipped_project: Path, tmp_path: Path, engine: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        releases(shipped_project, tmp_path, engine=engine)

    assert says in refused.value.message


def test_ansible_reads_the_same_inventory(tmp_path: Path) -> None:
    inventory(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "ansible", "inventory", "-i", str(tmp_path / "envs" / "hosts.yml"), "--host", "gpu-z"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )

    assert json.loads(done.stdout)["ops_nodes"] == 2


def test_a_host_needs_the_gpus_of_its_share_only(shipped_project: Path, tmp_path: Path) -> None:
    profile = load_profile(shipped_project, "eagle3-2step", environ={})
    facts = {"gpus": {"devices": [{"name": "GPU"}] * 4, "holders": []}, "processes": []}
    ask = Ask("gpus", "?")

    (member, _), alone = inventory(tmp_path).ensemble("pair"), HostSpec(name="alone", address="10.0.0.3")

    assert GPUS.judge(ask, facts, profile, member).passed
    assert GPUS.judge(ask, facts, profile, alone).outcome is Outcome.FAIL


def test_a_rank_that_takes_no_requests_is_asked_what_can_be_asked_of_it() -> None:
    names = [gate.name for gate in all_gates() if gate.of_follower]

    assert names == ["alive", "itself", "software", "wiring", "environment"]


RECORDED = "sglang-0.5.17-h200/nccl_info_ll.log"


def test_ranks_that_met_and_loaded_are_read_from_a_real_log(repository: Path) -> None:
    log = (repository / "tests" / "recordings" / RECORDED).read_text(errors="replace").splitlines()
    passed = Ask("alive", "?").passed("pid 7, 2 scheduler processes", ranks=2)

    assert joined_ruling(passed, log).passed
    assert not joined_ruling(passed, [line for line in log if not MET.match(line)]).passed
    assert not joined_ruling(passed, [line for line in log if not (LOADED.match(line) and "TP1]" in line)]).passed


def row(host: str, rank: int, *, good: bool = True, together: str = "good-1", state: str = "serving") -> HostResult:
    node = {"ensemble": "pair", "rank": rank, "nodes": 2, "members": ["gpu-a", "gpu-z"], "together": together}
    details = {"state": state, "good": good, "node": node}
    return HostResult(host=host, release=f"{together}-{rank}", outcome=state, details=details)


def test_a_model_is_good_only_when_all_of_it_is_there() -> None:
    both = [row("gpu-a", 0), row("gpu-z", 1)]
    assert whole(both) == both

    down = whole([row("gpu-a", 0), row("gpu-z", 1, good=False, state="down")])
    assert [r.details["good"] for r in down] == [False, False]
    assert down[0].message == "gpu-z, rank 1: down"

    split = whole([row("gpu-a", 0), row("gpu-z", 1, together="next-2")])
    assert [r.details["good"] for r in split] == [False, False]
    assert split[0].message == "gpu-z holds next-2-1, which does not belong to good-1"

    lost = HostResult(host="gpu-z", outcome="refused", exit_code=2, details={"state": "unknown"})
    assert whole([row("gpu-a", 0), lost])[0].message == "gpu-z: cannot be asked"


def seen(manifest: dict[str, Any], release: str, ranks: int) -> dict[str, Any]:
    """What a host with `ranks` live ranks behind a /health that says 200 looks like."""
    processes = [{"title": "python -m sglang.launch_server", "release": release, "pid": 1, "environ": {}}]
    processes += [
        {"title": f"sglang::scheduler_TP{4 + n}", "release": release, "pid": 2 + n, "environ": manifest["environment"]}
        for n in range(ranks)
    ]
    links = {"current": release, "last-good": release, "baseline": None, "pending": None}
    guard = dict.fromkeys(("armed", "armed.client", "fired", "confirmed", "started")) | {"wanted": "running"}
    return {
        "time": 100.0,
        "links": links,
        "manifests": {release: manifest},
        "guard": guard,
        "engine": {"state": "running", "pid": 1, "started_at": 1.0, "detail": ""},
        "processes": processes,
        "listeners": [],
        "admitted": None,
        "journal": [],
        "lock": None,
        "http": {"ready": 200},
    }


def test_status_counts_ranks_and_does_not_believe_a_dummy_health(shipped_project: Path, tmp_path: Path) -> None:
    _, second = releases(shipped_project, tmp_path)
    host = inventory(tmp_path).ensemble("pair")[1]

    well = describe(host, seen(second.manifest, second.id, 4))
    dead = describe(host, seen(second.manifest, second.id, 3))

    assert (well.details["state"], well.details["good"], well.details["admitted"]) == ("serving", True, False)
    assert (dead.details["state"], dead.details["good"]) == ("down", False)
    assert dead.message == "3 of 4 ranks live, whatever /health says: the model does not run"
