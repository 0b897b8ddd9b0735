"""Proves the lab itself. If these fail, whatever the other lab tests say about reboots and power cuts is worth nothing:
a host that does not really reboot makes "survives a reboot" true for the operator who will find it false.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from ops.sandbox.engine.install import Simulation

from . import images, machine
from .__main__ import UNAVAILABLE, main
from .conftest import MakeHost
from .faults import fault
from .fleet import fleet
from .hosts import Host, Lab
from .machine import CommandFailed
from .payload import ENGINE_PYTHON
from .vm import Vm

pytestmark = pytest.mark.lab

UNIT = """
[Unit]
Description=Shows its environment
[Service]
EnvironmentFile=/opt/ops/default/current/engine.env
ExecStart=/bin/sleep infinity
User=sglang
[Install]
WantedBy=multi-user.target
"""

PROGRAM = """
[program:engine-default]
command=/usr/bin/env NCCL_PROTO=LL /bin/sleep 7777
autostart=true
"""


def until(holds: Callable[[], bool], what: str, deadline_s: float = 20) -> None:
    deadline = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {deadline_s} s: {what}"
        time.sleep(0.1)


def environ_of(host: Host, command: str) -> list[str]:
    pid = host.exec("pgrep", "--oldest", "--full", f"^{command}").strip()
    return host.exec("cat", f"/proc/{pid}/environ").split("\0")


def write(host: Host | Vm, path: str, text: str) -> None:
    script = f'mkdir -p "$(dirname {path})" && cat >{path} && sync'
    host.login().run("sudo", "sh", "-c", script, stdin=text.encode())


# -- what every host is ------------------------------------------------------------------------------------------------


def test_ansible_reaches_every_kind_of_host_and_becomes_root_from_the_inventory_entry_alone(
    make_host: MakeHost, tmp_path: Path
) -> None:
    hosts = [make_host(kind) for kind in ("systemd", "supervisord")]
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"all": {"hosts": {host.name: host.inventory_entry() for host in hosts}}}))
    (tmp_path / "ansible.cfg").touch()
    ansible = machine.REPOSITORY / ".venv/bin/ansible"
    command = (ansible, "all", "-i", inventory, "-m", "command", "-a", "id -un", "--tree", tmp_path / "results")

    machine.sh(("env", f"ANSIBLE_CONFIG={tmp_path}/ansible.cfg", *command), timeout_s=120)

    results = {host.name: json.loads((tmp_path / "results" / host.name).read_text()) for host in hosts}
    assert {name: result["stdout"] for name, result in results.items()} == {host.name: "root" for host in hosts}


def test_root_logs_in_by_key_and_a_user_without_sudo_stays_without(systemd_host: Host) -> None:
    assert systemd_host.ssh("id", "-un", user="root") == "root\n"
    assert systemd_host.ssh("id", "-un", user="nosudo") == "nosudo\n"
    refused = systemd_host.login("nosudo").run("sudo", "--non-interactive", "id", check=False)
    assert refused.returncode == 1
    assert "password is required" in refused.stderr


@pytest.mark.parametrize(
    ("user", "noise"),
    [("fish", "fish is ready\n"), ("csh", "csh is ready\n"), ("loud", "Welcome to"), ("strict", "")],
)
def test_an_odd_login_shell_disturbs_a_command_but_runs_sh(systemd_host: Host, user: str, noise: str) -> None:
    done = systemd_host.login(user).run("/bin/sh", "-c", "echo answer; umask; pwd")

    assert "answer" in done.stdout
    assert noise in done.stdout
    if user == "strict":
        assert done.stdout == "answer\n0077\n/\n"


def test_exports_of_an_interactive_shell_are_missing_in_automation(systemd_host: Host) -> None:
    automated = systemd_host.ssh("env", user="interactive")
    interactive = systemd_host.ssh("bash", "-i", "-c", "env", user="interactive")

    assert "NCCL_P2P_LEVEL" not in automated
    assert "NCCL_P2P_LEVEL=SYS" in interactive


def test_a_reinstalled_host_is_refused_for_its_changed_key(systemd_host: Host) -> None:
    systemd_host.change_host_key()

    refused = systemd_host.login().run("true", check=False)

    assert refused.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.stderr


def test_a_host_off_the_network_keeps_its_processes_and_comes_back_at_its_address(systemd_host: Host) -> None:
    systemd_host.exec("systemd-run", "--unit=witness", "sleep", "4242")
    boot = systemd_host.boot_id()
    systemd_host.unplug_network()
    with pytest.raises(CommandFailed):
        systemd_host.ssh("true", timeout_s=3)

    systemd_host.plug_network()
    systemd_host.login().wait(deadline_s=10)

    assert systemd_host.ssh("systemctl", "is-active", "witness") == "active\n"
    assert systemd_host.boot_id() == boot


def test_reset_gives_the_host_back_as_new_under_the_same_identity(lab: Lab, systemd_host: Host) -> None:
    write(systemd_host, "/opt/ops/default/journal.jsonl", "{}")
    write(systemd_host, "/etc/systemd/system/sglang-default.service", UNIT)

    fresh = lab.reset(systemd_host)

    assert fresh == systemd_host
    assert "absent" in fresh.ssh(
        "sh", "-c", "test -e /opt/ops -o -e /etc/systemd/system/sglang-*.service || echo absent"
    )


# -- reboots and power cuts --------------------------------------------------------------------------------------------


def test_a_unit_with_an_environment_file_is_back_with_its_environment_after_a_reboot(systemd_host: Host) -> None:
    write(systemd_host, "/opt/ops/default/current/engine.env", "NCCL_PROTO=LL\nNCCL_ALGO=Ring\n")
    write(systemd_host, "/etc/systemd/system/sglang-default.service", UNIT)
    systemd_host.ssh("sudo", "systemctl", "enable", "--now", "sglang-default")
    boot, pid = systemd_host.boot_id(), systemd_host.ssh("systemctl", "show", "-P", "MainPID", "sglang-default")

    systemd_host.reboot()

    assert systemd_host.ssh("cat", "/proc/sys/kernel/random/boot_id").strip() != boot
    until(lambda: systemd_host.ssh("systemctl", "is-active", "sglang-default") == "active\n", "unit is active")
    assert pid.strip() != "0"
    assert {"NCCL_PROTO=LL", "NCCL_ALGO=Ring"} <= set(environ_of(systemd_host, "/bin/sleep infinity"))


def test_a_power_cut_ends_every_process_at_once_and_keeps_only_what_is_on_disk(systemd_host: Host) -> None:
    trap = "trap 'echo asked >/var/tmp/asked' TERM; while :; do sleep 0.1; done"
    systemd_host.exec("systemd-run", "--unit=witness", "sh", "-c", trap)
    write(systemd_host, "/var/tmp/on-disk", "kept")
    write(systemd_host, "/run/in-memory", "lost")
    boot = systemd_host.boot_id()

    systemd_host.power_cut()

    assert systemd_host.boot_id() != boot
    assert systemd_host.exec("cat", "/var/tmp/on-disk") == "kept"
    left = systemd_host.exec("sh", "-c", "ls /var/tmp/asked /run/in-memory 2>/dev/null; true")
    assert left == "", "no process was asked to end, and memory is empty"


def test_a_container_without_systemd_restarts_its_programs_and_keeps_the_kernels_boot_id(
    supervisord_host: Host,
) -> None:
    host = supervisord_host
    write(host, "/opt/ops/default/current/supervisor.conf", PROGRAM)
    host.ssh("sudo", "supervisorctl", "update")
    until(lambda: "RUNNING" in host.ssh("sh", "-c", "sudo supervisorctl status || true"), "the program runs")
    boot, first_start = host.boot_id(), host.ssh("stat", "-c", "%Y", "/proc/1")
    systemd = host.login().run("test", "-d", "/run/systemd/system", check=False)
    assert systemd.returncode == 1

    host.reboot()

    until(lambda: "NCCL_PROTO=LL" in environ_of(host, "/bin/sleep 7777"), "the program is back")
    # What tells a restart of a rented container: not the boot id, which is the machine's, but the age of process 1.
    assert host.boot_id() == boot
    assert int(host.ssh("stat", "-c", "%Y", "/proc/1")) > int(first_start)


def test_docker_inside_a_host_brings_its_container_back_after_a_reboot(docker_host: Host) -> None:
    pack = "tar -ch /bin/sh /bin/sleep $(ldd /bin/sh /bin/sleep | grep -o '/lib[^ :]*' | sort -u) 2>/dev/null"
    docker_host.ssh("sh", "-c", f"{pack} | docker import - tiny")
    docker_host.ssh(
        *("docker", "run", "--detach", "--name", "engine", "--restart", "unless-stopped", "--stop-timeout", "1"),
        *("--env", "NCCL_PROTO=LL", "tiny", "/bin/sleep", "7777"),
    )

    docker_host.reboot()

    def running() -> bool:
        shown = docker_host.login().run("docker", "inspect", "-f", "{{.State.Running}}", "engine", check=False)
        return shown.stdout == "true\n"

    until(running, "the container runs")
    assert "NCCL_PROTO=LL" in environ_of(docker_host, "/bin/sleep 7777")


# -- the engine --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["systemd", "supervisord"])
def test_the_simulated_engine_serves_on_the_host_as_its_own_user_and_holds_gpu_memory(
    make_host: MakeHost, kind: str
) -> None:
    host = make_host(kind, simulation=Simulation(time_scale=20))
    launch = (
        *(ENGINE_PYTHON, "-m", "sglang.launch_server", "--model-path", "/shared/models/Kimi-K2.5"),
        *("--tp-size", "8", "--host", "0.0.0.0", "--port", "8000", "--trust-remote-code"),
    )
    as_engine = ("setpriv", "--reuid=sglang", "--regid=sglang", "--clear-groups", "env", "-i", "SPT_NOENV=1")
    host.exec("sh", "-c", 'nohup setsid "$@" >/tmp/engine.log 2>&1 &', "sh", *as_engine, *launch)

    def healthy() -> bool:
        got = subprocess.run(
            ("curl", "--silent", "--fail", "--max-time", "5", f"http://{host.address}:8000/health"), check=False
        )
        return got.returncode == 0

    until(healthy, f"/health is 200; log: {host.exec('tail', '-c', '1500', '/tmp/engine.log')}", deadline_s=30)
    used = host.ssh("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits").split()
    assert len(used) == 8
    assert all(int(mib) > 10_000 for mib in used)
    ranks = [line.split() for line in host.exec("ps", "-eo", "user:20,args").splitlines() if "scheduler_TP" in line]
    assert len(ranks) == 8
    assert {rank[0] for rank in ranks} == {"sglang"}

    fault(host.login(), "health-ok-generation-hangs", on="current")
    asking = (
        "curl",
        "--silent",
        "--max-time",
        "3",
        "--json",
        '{"text": "Say", "sampling_params": {"max_new_tokens": 4}}',
    )
    until(
        lambda: host.login().run(*asking, f"http://{host.address}:8000/generate", check=False).returncode == 28, "hangs"
    )
    assert healthy()


# -- the virtual machine -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_virtual_machine_enforces_limits_that_a_container_only_pretends_to_have(vm: Vm) -> None:
    limits = vm.ssh(
        *("sudo", "systemd-run", "--quiet", "--wait", "--pipe"),
        *("-p", "LimitMEMLOCK=infinity", "-p", "LimitNOFILE=1048576", "sh", "-c", "ulimit -l; ulimit -n"),
    )
    assert limits == "unlimited\n1048576\n"

    hungry = ("python3", "-c", "print(len(bytearray(200 << 20)))")
    budget = ("sudo", "systemd-run", "--quiet", "--wait", "--pipe", "-p", "MemoryMax=50M", "-p", "MemorySwapMax=0")
    assert vm.login().run(*budget, *hungry, timeout_s=90, check=False).returncode != 0
    assert vm.ssh(*hungry) == f"{200 << 20}\n"


@pytest.mark.long
def test_the_virtual_machine_really_reboots_and_really_loses_its_power(vm: Vm) -> None:
    first = vm.boot_id()
    vm.reboot()
    second = vm.boot_id()
    assert second != first

    write(vm, "/var/tmp/on-disk", "kept")
    write(vm, "/run/in-memory", "lost")
    vm.power_cut()

    assert vm.boot_id() not in {first, second}
    assert vm.ssh("sh", "-c", "cat /var/tmp/on-disk; ls /run/in-memory 2>/dev/null; true") == "kept"


# -- fleets ------------------------------------------------------------------------------------------------------------


def test_fleet_hosts_have_their_own_disk_processes_and_loopback(lab: Lab) -> None:
    with fleet(3) as hosts:
        for host in hosts:
            host.ssh(
                "sudo", "sh", "-c", f"mkdir -p /opt/ops && hostname >/opt/ops/name && test $(hostname) = {host.name}"
            )
        assert [host.ssh("cat", "/opt/ops/name").strip() for host in hosts] == [host.name for host in hosts]
        serving = "nohup python3 -m http.server --bind 127.0.0.1 8000 >/dev/null 2>&1 & sleep 1; pgrep -fc http.server"
        assert [host.ssh("sh", "-c", serving) for host in hosts[:2]] == ["2\n", "2\n"]
        refused = hosts[2].login().run("curl", "--silent", "http://127.0.0.1:8000/", check=False)
        assert refused.returncode == 7
    assert machine.sh(("ip", "netns", "list")).count("ops-lab-fleet") == 0
    assert machine.sh(("pgrep", "-fc", "http.server --bind 127.0.0.1 8000"), check=False) == "0\n"


# -- the lab's own upkeep ----------------------------------------------------------------------------------------------


def test_a_changed_file_changes_the_tags_of_its_image_and_of_those_above_it_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = shutil.copytree(images.IMAGE_FOLDER, tmp_path / "image")
    monkeypatch.setattr(images, "IMAGE_FOLDER", copied)
    before = {name: images.image_tag(name) for name in images.RECIPES}

    (copied / "systemd" / "lab-init").write_text("#!/bin/sh\n")

    changed = {name for name in images.RECIPES if images.image_tag(name) != before[name]}
    assert changed == {"systemd", "docker", "vm"}


def test_without_root_one_line_says_why_there_is_no_lab(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert main(["up"]) == UNAVAILABLE

    assert capsys.readouterr().err == (
        "lab: unavailable: the lab needs root (it starts Docker, network namespaces and mounts)\n"
    )
