"""On a kernel of its own: limits that a container only pretends to have, and power cuts that really lose what was not
on the disk. If this fails, the container tests may be green while a real server would not come back from its reset.

One machine for all: booting it takes half a minute, so this is one story in chapters.
"""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from ops.sandbox.engine.install import Simulation

from .hosts import Lab, Settings
from .machine import CommandFailed
from .product import INSTANCE_DIR, PORT, PROFILE, Operator, events, links, ranks
from .vm import Vm

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

TUNED = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS"}
SLOW = 600
"""The processor is emulated: what takes a second elsewhere takes ten here (wall seconds)."""


def rate(vm: Vm, runs: int = 3, tokens: int = 500) -> float:
    """Measure tok/s at one user inside the machine: the best of `runs`, as an emulated processor only ever delays."""
    script = (
        "import json,sys,time,urllib.request\n"
        f"body = json.dumps({{'text': 'Say it.', 'sampling_params': {{'max_new_tokens': {tokens}, 'temperature': 0, "
        "'ignore_eos': True}}).encode()\n"
        f"request = urllib.request.Request('http://127.0.0.1:{PORT}/generate', body, "
        "{'Content-Type': 'application/json'})\n"
        f"rates = []\nfor _ in range({runs}):\n"
        "    began = time.monotonic()\n    urllib.request.urlopen(request, timeout=120).read()\n"
        f"    rates.append({tokens} / (time.monotonic() - began))\n"
        "print(json.dumps(max(rates)))\n"
    )
    scale = vm.settings.simulation.time_scale
    return float(json.loads(vm.ssh("python3", "-c", script, timeout_s=SLOW))) / scale


def wait_serving(vm: Vm, deadline_s: float = 240) -> None:
    ask = ("curl", "--silent", "--fail", "--max-time", "20", f"http://127.0.0.1:{PORT}/health")
    deadline = time.monotonic() + deadline_s
    while vm.login().run(*ask, timeout_s=60, check=False).returncode != 0:
        assert time.monotonic() < deadline, f"the engine does not serve within {deadline_s} s"
        time.sleep(1)


def wait_for_step(vm: Vm, kind: str, known: int, deadline_s: float = 300) -> None:
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            fresh = events(vm)[known:]
        except (CommandFailed, ValueError):
            fresh = []
        if any(e["event"] == "step-started" and e["step"]["kind"] == kind for e in fresh):
            return
        assert time.monotonic() < deadline, f"{kind} was not reached within {deadline_s} s: {fresh}"
        time.sleep(0.5)


def test_a_real_machine_keeps_its_limits_and_its_release_over_power_cuts(lab: Lab, tmp_path: Path) -> None:
    name = f"vm-product-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-{os.getpid()}"
    with Vm(name, Settings(simulation=Simulation(time_scale=1, load_s=10))) as vm:
        operator = Operator.of(tmp_path / "project", vm)
        operator.change_profile("baseline", engine={"tensor_parallel": 2})
        release = operator.deploy(vm, PROFILE, timeout_s=SLOW)

        limits_are_real(vm, operator)
        a_power_cut_after_a_good_deploy_changes_nothing(vm, operator, release)
        a_power_cut_in_a_load_brings_the_last_good_release_back(vm, operator, release)
        a_wrong_clock_is_refused(vm, operator)


def limits_are_real(vm: Vm, operator: Operator) -> None:
    found = ranks(vm)
    assert len(found) == 2
    for pid in found:
        rows = vm.ssh("sudo", "cat", f"/proc/{pid}/limits").splitlines()
        limits = {row[:26].strip(): row[26:].split()[:2] for row in rows}
        assert limits["Max locked memory"] == ["unlimited", "unlimited"]
        assert limits["Max open files"] == ["1048576", "1048576"]
    answer = operator.ops("verify", "--host", vm.name, timeout_s=SLOW)
    assert answer.code == 0, answer
    assert answer.check("limits")["message"] == "memlock unlimited, nofile 1048576"


def a_power_cut_after_a_good_deploy_changes_nothing(vm: Vm, operator: Operator, release: str) -> None:
    before, boot = rate(vm), vm.boot_id()

    vm.power_cut()
    wait_serving(vm)

    assert vm.boot_id() != boot
    found = ranks(vm)
    assert len(found) == 2
    for environ in found.values():
        assert TUNED.items() <= environ.items()
        assert environ["OPS_RELEASE"] == release
    after = rate(vm)
    assert abs(after - before) / before < 0.03, f"{before:.1f} tok/s before, {after:.1f} after"
    answer = operator.ops("verify", "--host", vm.name, timeout_s=SLOW)
    assert answer.code == 0, answer


def a_power_cut_in_a_load_brings_the_last_good_release_back(vm: Vm, operator: Operator, release: str) -> None:
    known = len(events(vm))
    client = operator.process("deploy", "--profile", "eagle3-1step", "--host", vm.name, "--json")
    try:
        wait_for_step(vm, "start", known)
        os.killpg(client.pid, signal.SIGSTOP)
        loading = links(vm)
        vm.power_off()
    finally:
        os.killpg(client.pid, signal.SIGKILL)
        client.communicate(timeout=20)
    assert loading["current"] == loading["pending"] != release

    vm.power_on()
    wait_serving(vm)

    assert {environ["OPS_RELEASE"] for environ in ranks(vm).values()} == {release}
    assert links(vm)["current"] == links(vm)["last-good"] == release
    assert "pending" not in links(vm)
    restored = [e for e in events(vm)[known:] if e["event"] == "restored"]
    assert [(e["release"], e["reason"]) for e in restored] == [(release, "boot")]
    assert vm.ssh("sh", "-c", f"test -e {INSTANCE_DIR}/lock || echo free") == "free\n"


def a_wrong_clock_is_refused(vm: Vm, operator: Operator) -> None:
    vm.ssh("sudo", "date", "-s", "+1 hour")
    answer = operator.ops("deploy", "--profile", "eagle3-1step", "--host", vm.name, timeout_s=SLOW)
    assert answer.code == 2, answer
    assert "ahead of the clock here" in answer.host["message"]
