"""A fleet of real servers under systemd: if this fails, playbooks and `ops --group` differ there, or lose requests."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops.sandbox.engine.install import Simulation
from tests.fleet_load import Load

from .conftest import MakeHost
from .hosts import Host
from .machine import REPOSITORY, CommandFailed
from .product import INSTANCE_DIR, Answer, Operator, events, links

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1500)]

SCALE = 10.0
WHY = "the fleet's tests are about hosts and traffic, not about figures"
SKIPPED = ("wiring", "effective-config", "agreement", "acceptance", "long-context", "soak", "speed")


class Fleet:
    """Three hosts with systemd in the group `gpu`."""

    def __init__(self, folder: Path, hosts: list[Host]) -> None:
        self.hosts = {host.name: host for host in hosts}
        self.operator = Operator.of(folder, *hosts)
        inventory = {
            "all": {
                "hosts": self.operator.hosts,
                "children": {"gpu": {"hosts": dict.fromkeys(self.hosts)}},
            }
        }
        (folder / "envs/hosts.yml").write_text(yaml.safe_dump(inventory))
        self.operator.change_profile(
            "baseline",
            engine={"tensor_parallel": 2},
            traffic={"concurrency": [1]},
            gates={"skip": dict.fromkeys(SKIPPED, WHY), "generation": {"max_tokens": 16}},
        )

    def play(self, playbook: str, *words: str) -> tuple[int, str]:
        """Run a playbook by hand and return its exit code and what it printed."""
        file = str(REPOSITORY / "playbooks" / playbook)
        # A socket's path has 108 bytes at most: the test's own folder is too long for those of Ansible's ssh.
        with tempfile.TemporaryDirectory(prefix="ops-") as sockets:
            done = subprocess.run(
                [sys.executable, "-m", "ansible", "playbook", "-i", "envs/hosts.yml", file, "-e", "target=gpu", *words],
                cwd=self.operator.folder,
                env={"PATH": "/usr/bin:/bin", "HOME": str(self.operator.folder), "PYTHONPATH": str(REPOSITORY)}
                | {"ANSIBLE_NOCOLOR": "1", "LANG": "C.UTF-8", "ANSIBLE_SSH_CONTROL_PATH_DIR": sockets},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
        return done.returncode, done.stdout + done.stderr

    def changed(self, text: str) -> list[int]:
        """The recap's `changed`, in the hosts' order."""
        found = dict(re.findall(r"^(\S+)\s+: .*\bchanged=(\d+)", text, re.MULTILINE))
        return [int(found[name]) for name in self.hosts]

    def group(self, *words: str, timeout_s: float = 600) -> Answer:
        return self.operator.ops(*words, "--group", "gpu", timeout_s=timeout_s)

    def admitted(self, name: str) -> str | None:
        """The host's own mark of who takes traffic there, read from outside; None while it boots."""
        try:
            return self.hosts[name].exec("cat", f"{INSTANCE_DIR}/admitted")
        except CommandFailed:
            return None

    def state(self) -> dict[str, Any]:
        """Files, processes and journal of every host, as they are outside `ops`."""
        script = (
            f"cd {INSTANCE_DIR} && find . -type f -o -type l | grep -v '^./logs/' | grep -v '^./lock.mutex' | sort"
            " | xargs sha256sum; ls -l current last-good; pgrep -f '[s]glang' | sort | tr '\\n' ' '"
        )
        return {name: host.exec("sh", "-c", script) for name, host in self.hosts.items()}


@pytest.fixture
def fleet(make_host: MakeHost, tmp_path: Path) -> Fleet:
    simulation = Simulation(time_scale=SCALE, noise="off", load_s=10)
    return Fleet(tmp_path, [make_host("systemd", simulation=simulation) for _ in range(3)])


def profiles(fleet: Fleet) -> list[str]:
    return [links(host)["current"].rpartition("-")[0] for host in fleet.hosts.values()]


def test_by_hand_and_by_ops_are_the_same_and_leave_alone_what_is_right(fleet: Fleet) -> None:
    code, text = fleet.play("deploy.yml", "-e", "profile=eagle3-2step")
    assert code == 0, text
    assert fleet.changed(text) == [1, 1, 1]
    released = {name: links(host)["current"] for name, host in fleet.hosts.items()}
    before = fleet.state()

    code, text = fleet.play("deploy.yml", "-e", "profile=eagle3-2step")
    assert (code, fleet.changed(text)) == (0, [0, 0, 0]), text
    same = fleet.group("deploy", "--profile", "eagle3-2step")
    assert (same.code, same.document["outcome"]) == (0, "unchanged"), same
    assert [row["release"] for row in same.document["hosts"]] == list(released.values())
    assert fleet.state() == before

    code, text = fleet.play("deploy.yml", "-e", "profile=eagle3-3step", "--check", "--diff")
    assert (code, fleet.changed(text)) == (0, [1, 1, 1]), text
    assert "-    --speculative-num-steps 2 \\\n+    --speculative-num-steps 3 \\" in text
    assert fleet.state() == before

    first, second, third = fleet.hosts.values()
    environment = f"{INSTANCE_DIR}/current/engine.env"
    second.exec("sed", "-i", "s/^NCCL_PROTO=LL$/NCCL_PROTO=Simple/", environment)
    code, text = fleet.play("deploy.yml", "-e", "profile=eagle3-2step")
    assert (code, fleet.changed(text)) == (0, [0, 1, 0]), text
    assert "NCCL_PROTO=LL\n" in second.exec("cat", environment)
    after = fleet.state()
    assert [after[host.name] == before[host.name] for host in (first, second, third)] == [True, False, True]

    rolled = fleet.group("deploy", "--profile", "eagle3-3step")
    assert (rolled.code, rolled.document["outcome"]) == (0, "deployed"), rolled
    assert profiles(fleet) == ["eagle3-3step"] * 3


def test_a_rolling_deploy_and_a_rolling_reboot_under_load_cut_no_request(fleet: Fleet) -> None:
    first = fleet.group("deploy", "--profile", "eagle3-2step")
    assert first.code == 0, first
    addresses = {name: host.address for name, host in fleet.hosts.items()}
    boots = {name: host.exec("cat", "/proc/sys/kernel/random/boot_id") for name, host in fleet.hosts.items()}

    def status() -> Mapping[str, Any]:
        return fleet.group("status").document

    with Load(addresses, status, fleet.admitted, clients=3, watch_s=0.2) as load:
        deployed = fleet.group("deploy", "--profile", "eagle3-3step")
        load.wait_for_answers(2)
        after_deploy = load.lowest
        rebooted = fleet.group("host", "reboot", "--verify", timeout_s=700)
        load.wait_for_answers(2)

    assert deployed.code == 0, deployed
    assert rebooted.code == 0, rebooted
    assert (load.cut, load.problems) == ([], [])
    assert after_deploy == load.lowest == 2
    assert profiles(fleet) == ["eagle3-3step"] * 3
    for name, host in fleet.hosts.items():
        assert host.exec("cat", "/proc/sys/kernel/random/boot_id") != boots[name]
        assert [e["outcome"] for e in events(host) if e["event"] == "gated"][-1] == "pass"
        assert fleet.admitted(name) is not None


def test_prepare_makes_what_a_host_needs_and_a_second_run_changes_nothing(fleet: Fleet) -> None:
    fleet.operator.change_profile("baseline", run_as="engine")
    code, text = fleet.play("prepare.yml", "-e", "profile=eagle3-2step")
    assert code == 0, text
    assert all(changed > 0 for changed in fleet.changed(text))
    for host in fleet.hosts.values():
        assert "/usr/sbin/nologin" in host.exec("getent", "passwd", "engine")
        assert "engine - memlock unlimited" in host.exec("cat", "/etc/security/limits.d/60-ops.conf")

    code, text = fleet.play("site.yml", "-e", "profile=eagle3-2step")
    assert code == 0, text
    again, text = fleet.play("site.yml", "-e", "profile=eagle3-2step")
    assert (again, fleet.changed(text)) == (0, [0, 0, 0]), text
