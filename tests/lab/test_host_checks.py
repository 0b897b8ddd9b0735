"""Preflight on real hosts: what would end in a crash after minutes of loading is refused before anything is touched.

If these fail, operators wait for a load that cannot work, or a deploy hurts containers of others. Cases START-03,
HOST-01, HOST-03, HOST-04.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ops.sandbox.engine.install import Simulation

from .conftest import MakeHost
from .hosts import Host, Lab, Settings
from .product import PORT, Answer, Operator

pytestmark = pytest.mark.lab

FAST = Simulation(time_scale=20)


def refused(operator: Operator, host: Host) -> Answer:
    """Deploy, which must be refused with nothing touched."""
    answer = operator.ops("deploy", "--profile", "eagle3-2step", "--host", host.name)
    assert answer.code == 2, answer
    assert "absent" in host.exec("sh", "-c", "test -e /opt/ops || echo absent"), answer
    return answer


@pytest.fixture
def stubs(make_host: MakeHost, tmp_path: Path) -> Iterator[tuple[Host, Operator]]:
    """A host whose /opt/stubs comes first in the search path."""
    host = make_host("systemd", simulation=FAST)
    operator = Operator.of(tmp_path / "project", host)
    operator.hosts[host.name]["ops_search_path"] = ["/opt/stubs"]  # type: ignore[assignment]
    operator.set_variables(host.name)
    yield host, operator


def stub(host: Host, name: str, script: str) -> None:
    host.exec("mkdir", "-p", "/opt/stubs")
    command = f"cat >/opt/stubs/{name} && chmod 0755 /opt/stubs/{name}"
    host.exec("sh", "-c", command, stdin=f"#!/bin/sh\n{script}\n".encode())


def test_64_mib_of_shared_memory_are_refused_for_8_ranks(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host("systemd", simulation=FAST, shm_mib=64)

    answer = refused(Operator.of(tmp_path / "project", host), host)

    assert "/dev/shm has 64 MiB, 8 ranks need 128 MiB" in answer.host["message"]
    assert "--shm-size" in answer.host["hint"]


def test_seven_of_eight_gpus_are_refused(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host("systemd", simulation=Simulation(time_scale=20, gpus={"count": 7}))

    answer = refused(Operator.of(tmp_path / "project", host), host)

    assert "7 GPUs, but tensor parallel over 8" in answer.host["message"]


def test_a_gpu_that_fell_off_the_bus_is_hardware_and_no_deploy_is_tried(stubs: tuple[Host, Operator]) -> None:
    host, operator = stubs
    line = "[ 8812.1] NVRM: Xid (PCI:0000:41:00): 79, pid=1234, name=python, GPU has fallen off the bus."
    stub(host, "dmesg", f"echo '{line}'")

    answer = refused(operator, host)

    assert "Xid 79 (GPU has fallen off the bus) on PCI:0000:41:00" in answer.host["message"]
    assert "reboot" in answer.host["hint"]


def test_a_driver_that_does_not_fit_its_library_is_named(stubs: tuple[Host, Operator]) -> None:
    host, operator = stubs
    stub(host, "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")

    answer = refused(operator, host)

    assert "Driver/library version mismatch" in answer.host["message"]
    assert "reboot" in answer.host["hint"]


def test_a_driver_too_old_for_the_stacks_cuda_is_refused(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host("systemd", simulation=Simulation(time_scale=20, gpus={"driver": "550.127.05"}))
    operator = Operator.of(tmp_path / "project", host)
    stack = operator.folder / "envs/stacks/kimi-k25-eagle3.yaml"
    stack.write_text(yaml.safe_dump({**yaml.safe_load(stack.read_text()), "cuda": "13.0"}))

    answer = refused(operator, host)

    assert "driver 550.127.05 is too old for CUDA 13.0: it needs 580.65 or newer" in answer.host["message"]


def test_a_taken_port_is_refused_with_its_owner(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host("systemd", simulation=FAST)
    serve = f"cd /tmp && exec python3 -m http.server {PORT}"
    host.exec("systemd-run", "--quiet", "--uid=interactive", "sh", "-c", serve)
    for _ in range(50):
        if str(PORT) in host.exec("ss", "-Hltn"):
            break

    answer = refused(Operator.of(tmp_path / "project", host), host)

    assert f"port {PORT} on 0.0.0.0 already belongs to pid" in answer.host["message"]
    assert "of interactive (python3 -m http.server" in answer.host["message"]


def test_run_as_a_user_that_does_not_exist_is_refused(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host("supervisord", simulation=FAST)
    operator = Operator.of(tmp_path / "project", host)
    operator.change_profile("baseline", run_as="nobody-here")

    answer = refused(operator, host)

    assert "run as nobody-here, and there is no such user" in answer.host["message"]


# -- HOST-01: daemon-reload takes GPUs away from containers of others -------------------------------------------------

DAEMON = '{"exec-opts": ["native.cgroupdriver=systemd"], "runtimes": {"nvidia": {"path": "runc"}}}'


@pytest.fixture(scope="module")
def beside_a_container(
    lab: Lab, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Iterator[tuple[Host, Operator]]:
    """A host where a colleague's container has GPUs through NVIDIA's runtime, and our engine runs as a release."""
    host = lab.host(f"docker-reload-{worker_id}", "docker", Settings(simulation=FAST))
    try:
        operator = Operator.of(tmp_path_factory.mktemp("reload") / "project", host)
        host.exec("sh", "-c", "mkdir -p /etc/docker && cat >/etc/docker/daemon.json", stdin=DAEMON.encode())
        host.exec("systemctl", "restart", "docker", timeout_s=60)
        root = (
            "mkdir -p /tmp/root/bin && cp /bin/busybox /tmp/root/bin/ 2>/dev/null || cp -aL /bin/sleep /tmp/root/bin/"
        )
        host.exec(
            "sh", "-c", f"{root}; for l in $(ldd /bin/sleep | grep -o '/[^ ]*'); do cp -L --parents $l /tmp/root; done"
        )
        host.exec("sh", "-c", "tar -C /tmp/root -c . | docker import - colleague:1", timeout_s=60)
        run = ("docker", "run", "--detach", "--name", "training", "--runtime", "nvidia")
        host.exec(*run, "--env", "NVIDIA_VISIBLE_DEVICES=all", "colleague:1", "/bin/sleep", "100000", timeout_s=60)
        yield host, operator
    finally:
        lab.remove(host)


def reloads(host: Host) -> int:
    """Return how often this boot's systemd has reloaded."""
    return host.exec("journalctl", "--no-pager", "--quiet", "_PID=1", "--grep", "^Reloading", check=False).count(
        "Reloading"
    )


def test_a_deploy_never_reloads_systemd_under_a_colleagues_gpu_container(
    beside_a_container: tuple[Host, Operator],
) -> None:
    host, operator = beside_a_container
    driver = host.exec("docker", "info", "--format", "{{.CgroupDriver}}").strip()
    assert driver == "systemd"
    before = reloads(host)

    first = operator.deploy(host)
    assert reloads(host) == before, "a first unit needs no reload"

    # Another stop timeout is another unit, and that needs a reload.
    operator.change_profile("baseline", timeouts={"stop_timeout_s": 200})
    answer = operator.ops("deploy", "--profile", "eagle3-2step", "--host", host.name)
    assert answer.code == 2, answer
    assert "could take the GPUs away from training (colleague:1)" in answer.host["message"]
    assert "nvidia-ctk system create-dev-char-symlinks" in answer.host["hint"]
    assert reloads(host) == before
    assert operator.ops("verify", "--host", host.name).host["release"] == first

    host.exec("docker", "rm", "--force", "training", timeout_s=60)
    operator.deploy(host)
    assert reloads(host) > before, "with nobody endangered the new unit is read"
