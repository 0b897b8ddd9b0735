"""Whoever logs in, with whatever shell, gets the same deploy; and a lost connection is no lost server.

If these fail, a deploy works for the person who wrote it and for nobody else, or files end up with the wrong rights.
Cases SSH-01, SSH-03, SSH-05, SSH-06, SSH-08.
"""

import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ops.sandbox.engine.install import Simulation

from .conftest import MakeHost
from .faults import fault
from .hosts import Host, Lab, Settings
from .product import INSTANCE_DIR, Operator, events, links, ranks, wait_serving

pytestmark = pytest.mark.lab

SECRET = "hf_0123456789sentinel"


@pytest.fixture(scope="module")
def one(lab: Lab, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[tuple[Host, Operator]]:
    """One host for everybody who logs in."""
    host = lab.host(f"systemd-logins-{worker_id}", "systemd", Settings(simulation=Simulation(time_scale=20)))
    try:
        yield host, Operator.of(tmp_path_factory.mktemp("logins") / "project", host)
    finally:
        lab.remove(host)


@pytest.mark.parametrize("user", ["fish", "csh", "loud", "strict", "interactive", "root"])
def test_any_login_shell_gets_the_same_deploy_and_the_same_rights(one: tuple[Host, Operator], user: str) -> None:
    host, operator = one
    operator.set_variables(host.name, ansible_user=user, ansible_become=user != "root")
    host.exec("sh", "-c", "systemctl stop sglang-default 2>/dev/null; rm -rf /opt/ops; true")

    release = operator.deploy(host)

    verified = operator.ops("verify", "--host", host.name)
    assert verified.code == 0, verified
    assert rights(host, release) == {
        "/opt/ops": "755 root",
        INSTANCE_DIR: "755 root",
        f"{INSTANCE_DIR}/releases/{release}": "755 root",
        f"{INSTANCE_DIR}/releases/{release}/engine.env": "600 root",
        f"{INSTANCE_DIR}/releases/{release}/launch.sh": "755 root",
        f"{INSTANCE_DIR}/logs/{release}.log": "640 root",
        f"{INSTANCE_DIR}/journal.jsonl": "644 root",
        "/etc/systemd/system/sglang-default.service": "644 root",
    }


def rights(host: Host, release: str) -> dict[str, str]:
    paths = (
        "/opt/ops",
        INSTANCE_DIR,
        f"{INSTANCE_DIR}/releases/{release}",
        f"{INSTANCE_DIR}/releases/{release}/engine.env",
        f"{INSTANCE_DIR}/releases/{release}/launch.sh",
        f"{INSTANCE_DIR}/logs/{release}.log",
        f"{INSTANCE_DIR}/journal.jsonl",
        "/etc/systemd/system/sglang-default.service",
    )
    found = {}
    for line in host.exec("stat", "-c", "%n %a %U", *paths).splitlines():
        path, _, rest = line.partition(" ")
        found[path] = rest
    return found


@pytest.mark.parametrize("kind", ["systemd", "supervisord"])
def test_the_engine_runs_as_its_own_user_and_secrets_are_its_own_alone(
    make_host: MakeHost, tmp_path: Path, kind: str
) -> None:
    host = make_host(kind, simulation=Simulation(time_scale=20))
    operator = Operator.of(tmp_path / "project", host)
    operator.change_profile("baseline", run_as="sglang", secrets=["HF_TOKEN"])
    (operator.folder / ".env").write_text(f"HF_TOKEN={SECRET}\n")

    release = operator.deploy(host)

    listed = host.exec("ps", "-eo", "user:20,args").splitlines()
    engine = [line.split()[0] for line in listed if "sglang::" in line or "sglang.launch_server" in line]
    assert engine == ["sglang"] * 10, listed
    found = rights_of_secrets(host)
    assert found == {f"{INSTANCE_DIR}/releases/{release}/engine.env": "600 sglang"} | {
        path: rest for path, rest in found.items() if "/releases/baseline-" in path and rest == "600 sglang"
    }
    assert not [line for line in listed if SECRET in line]
    open_to_all = host.exec("find", "/opt/ops", "-perm", "-o+w", "-not", "-type", "l")
    assert open_to_all == ""
    as_other = ("setpriv", "--reuid=nosudo", "--regid=nosudo", "--clear-groups")
    log = f"{INSTANCE_DIR}/logs/{release}.log"
    assert host.exec(*as_other, "sh", "-c", f"cat {log} >/dev/null 2>&1 || echo refused") == "refused\n"
    verified = operator.ops("verify", "--host", host.name)
    assert verified.code == 0, verified
    assert SECRET not in f"{verified}"

    host.reboot()
    wait_serving(host)
    status = operator.ops("status", "--host", host.name)
    assert status.host["release"] == release, status
    assert operator.ops("stop", "--host", host.name).code == 0
    assert host.exec("sh", "-c", "pgrep -u sglang -f sglang:: || true") == ""


def rights_of_secrets(host: Host) -> dict[str, str]:
    """Return every file under /opt/ops and /etc that holds the secret."""
    holding = host.exec("sh", "-c", f"grep -rlF {SECRET} /opt/ops /etc /var/log 2>/dev/null || true").split()
    rows = host.exec("stat", "-c", "%n %a %U", *holding).splitlines() if holding else []
    return {row.split(" ", 1)[0]: row.split(" ", 1)[1] for row in rows}


def test_a_login_without_sudo_is_refused_with_the_way_out(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host("systemd", simulation=Simulation(time_scale=20))
    operator = Operator.of(tmp_path / "project", host, ansible_user="nosudo", ansible_become=True)

    with_become = operator.ops("deploy", "--profile", "eagle3-2step", "--host", host.name)
    operator.set_variables(host.name, ansible_become=False)
    without = operator.ops("deploy", "--profile", "eagle3-2step", "--host", host.name)

    assert with_become.code == without.code == 2
    assert "sudo" in with_become.host["message"] + with_become.host["hint"], with_become
    assert "nosudo cannot write" in without.host["message"], without
    assert "absent" in host.exec("sh", "-c", "test -e /opt/ops || echo absent")


def test_variables_of_login_files_never_reach_the_ranks_and_the_operator_is_told(
    make_host: MakeHost, tmp_path: Path
) -> None:
    host = make_host("systemd", simulation=Simulation(time_scale=20))
    lines = "export NCCL_PROTO=Simple\\nNCCL_IB_DISABLE=1\\n"
    host.exec(
        "sh", "-c", f"printf '{lines}' >>/etc/environment; printf 'export NCCL_ALGO=Tree\\n' >/etc/profile.d/x.sh"
    )
    operator = Operator.of(tmp_path / "project", host, ansible_user="interactive")

    answer = operator.ops("deploy", "--profile", "eagle3-2step", "--host", host.name)

    assert answer.code == 0, answer
    warning = next(line for line in answer.stderr.splitlines() if "warning: login-files" in line)
    assert "/etc/environment:" in warning
    assert "export NCCL_PROTO=Simple" in warning
    assert "(and 3 more)" in warning, warning  # NCCL_IB_DISABLE, NCCL_ALGO, and the NCCL_P2P_LEVEL of .bashrc
    found = ranks(host)
    assert len(found) == 8
    for environ in found.values():
        assert environ["NCCL_PROTO"] == "LL"
        assert environ["NCCL_ALGO"] == "Ring"
        assert "NCCL_IB_DISABLE" not in environ
    assert operator.ops("verify", "--host", host.name).code == 0


def test_the_server_outlives_every_session_of_who_started_it(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host("systemd", simulation=Simulation(time_scale=20))
    host.exec("sh", "-c", "echo KillUserProcesses=yes >>/etc/systemd/logind.conf; systemctl restart systemd-logind")
    operator = Operator.of(tmp_path / "project", host)
    operator.deploy(host)
    before = sorted(ranks(host))

    host.exec("sh", "-c", "loginctl terminate-user deploy; pkill -KILL -u deploy; true")
    time.sleep(2)

    assert sorted(ranks(host)) == before
    assert operator.ops("verify", "--host", host.name).code == 0


def test_connections_cut_again_and_again_in_a_load_do_not_fail_the_deploy(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host("systemd", simulation=Simulation(time_scale=2, load_s=16))
    operator = Operator.of(tmp_path / "project", host)
    client = operator.process("deploy", "--profile", "eagle3-2step", "--host", host.name, "--json")
    cuts = cut_while_loading(host, client)

    answer = operator.finished(client, timeout_s=180)

    assert cuts >= 2, "no connection was cut"
    assert answer.code == 0, answer
    assert "SSH connection lost, trying to come back" in answer.stderr
    assert [e["step"]["kind"] for e in events(host) if e["event"] == "step-started"].count("start") == 1


def cut_while_loading(host: Host, client: "subprocess.Popen[str]") -> int:
    """Kill the deployer's SSH sessions every two seconds while the engine loads; return how often one was cut."""
    cuts = 0
    while client.poll() is None:
        seen = [e for e in events(host) if e["event"] in ("step-started", "step-done")]
        last: Mapping[str, Any] = seen[-1] if seen else {"event": "", "step": {"kind": ""}}
        if last["step"]["kind"] == "gate":
            return cuts
        if last["step"]["kind"] == "start" and last["event"] == "step-started":
            killed = host.exec("sh", "-c", "pkill -KILL -u deploy -x sshd && echo cut || true")
            cuts += killed == "cut\n"
            time.sleep(1.5)
        time.sleep(0.2)
    return cuts


def test_an_unreachable_host_is_unknown_never_failed(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host("systemd", simulation=Simulation(time_scale=20))
    operator = Operator.of(tmp_path / "project", host)
    operator.deploy(host)
    host.unplug_network()

    status = operator.ops("status", "--host", host.name)

    assert status.host["state"] == "unknown", status
    host.plug_network()
    host.login().wait(deadline_s=20)
    assert operator.ops("status", "--host", host.name).host["outcome"] == "serving"


def test_a_reinstalled_hosts_key_is_refused_with_both_fingerprints(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host("systemd", simulation=Simulation(time_scale=20))
    operator = Operator.of(tmp_path / "project", host)
    release = operator.deploy(host)
    expected = fingerprint(host)
    host.change_host_key()
    seen = fingerprint(host)

    answer = operator.ops("deploy", "--profile", "eagle3-1step", "--host", host.name)

    assert answer.code == 2, answer
    assert expected != seen
    assert expected in answer.host["message"], answer
    assert seen in answer.host["message"], answer
    assert "replace its line" in answer.host["hint"]
    assert links(host)["current"] == release


def fingerprint(host: Host) -> str:
    """Return the host key's fingerprint as ssh-keygen prints it: SHA256:…"""
    return host.exec("ssh-keygen", "-l", "-f", "/etc/ssh/lab/host_key").split()[1]


def test_an_engine_hung_in_its_load_is_given_up_and_the_old_release_serves(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host("systemd", simulation=Simulation(time_scale=20))
    operator = Operator.of(tmp_path / "project", host)
    operator.change_profile("baseline", timeouts={"load_timeout_s": 120})
    release = operator.deploy(host)
    fault(host.login(), "hang-during-load")

    answer = operator.ops("deploy", "--profile", "eagle3-1step", "--host", host.name)

    assert answer.code == 3, answer
    assert links(host)["current"] == release
    assert {environ["OPS_RELEASE"] for environ in ranks(host).values()} == {release}
