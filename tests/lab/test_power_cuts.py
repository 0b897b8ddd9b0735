"""The power may go in any phase of a deploy: after boot the host serves the last good release, with no client's help.

If these fail, a host that lost its power in a deploy serves an unproven release, two of them, or nothing.
"""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from ops.sandbox.engine.install import Simulation

from .hosts import Host, Lab, Settings
from .machine import docker_client
from .product import INSTANCE_DIR, Operator, events, gpu_holders, links, ranks, wait_serving

pytestmark = pytest.mark.lab

PHASES = {
    "systemd": ("stage", "arm", "drain", "stop", "activate", "start", "gate", "confirm", "admit"),
    "supervisord": ("stop", "activate", "start", "gate", "confirm"),
}
BEFORE = dict(zip(PHASES["systemd"], (None, *PHASES["systemd"]), strict=False))
COARSE, FINE = (0.03, 0.03), (0.15, 0.01)
"""Seconds: how long the journal is waited for, and how long the client then runs."""
OTHER = {"eagle3-2step": "eagle3-1step", "eagle3-1step": "eagle3-2step"}


@pytest.fixture(scope="module")
def good(
    lab: Lab, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Iterator[Callable[[str], tuple[Host, Operator]]]:
    """Hosts with a good release on them, one a kind for the whole module."""
    hosts: dict[str, Host] = {}
    made: dict[str, tuple[Host, Operator]] = {}

    def on(kind: str) -> tuple[Host, Operator]:
        if kind not in made:
            host = lab.host(f"{kind}-cut-{worker_id}", kind, Settings(simulation=Simulation(time_scale=20)))
            hosts[kind] = host
            made[kind] = host, Operator.of(tmp_path_factory.mktemp(kind) / "project", host)
            made[kind][1].deploy(host)
        return made[kind]

    yield on
    for host in hosts.values():
        lab.remove(host)


FOLLOW = """
import sys, time
file = open(sys.argv[1])
for _ in range(int(sys.argv[2])):
    file.readline()
while True:
    line = file.readline()
    if line.endswith("\\n"):
        print(line, end="", flush=True)
    else:
        time.sleep(0.005)
"""


def freeze_in(host: Host, client: "subprocess.Popen[str]", phase: str, known: int, deadline_s: float = 90) -> None:
    """Stop the client when the host's journal says that the phase has begun; what the host does meanwhile goes on.

    From its first journal line on the client gets short slices of time, in the phase before shorter ones, and after
    each of those the journal is waited for: so it cannot be far beyond the phase, on a busy machine neither.
    """
    reader = (docker_client(), "exec", host.container, "python3", "-u", "-c", FOLLOW)
    seen: queue.SimpleQueue[str] = queue.SimpleQueue()
    with subprocess.Popen(
        (*reader, f"{INSTANCE_DIR}/journal.jsonl", str(known)), stdout=subprocess.PIPE, text=True
    ) as journal:
        assert journal.stdout is not None
        threading.Thread(target=_pass_on, args=(journal.stdout, seen), daemon=True).start()
        try:
            _slice_until(client, phase, seen, time.monotonic() + deadline_s)
        finally:
            journal.kill()


def _pass_on(lines: Iterable[str], seen: "queue.SimpleQueue[str]") -> None:
    for line in lines:
        seen.put(line)


def _slice_until(client: "subprocess.Popen[str]", phase: str, seen: "queue.SimpleQueue[str]", deadline: float) -> None:
    slow = False
    pause_s, slice_s = COARSE
    while True:
        try:
            event = json.loads(seen.get(timeout=pause_s))
        except queue.Empty:
            assert time.monotonic() < deadline, f"{phase} was not reached in time"
            assert client.poll() is None, f"the deploy ended before {phase}: {client.communicate()}"
            if slow:
                os.killpg(client.pid, signal.SIGCONT)
                time.sleep(slice_s)
                os.killpg(client.pid, signal.SIGSTOP)
            continue
        slow = True
        os.killpg(client.pid, signal.SIGSTOP)
        kind = event["step"]["kind"] if event["event"] == "step-started" and not event["recovery"] else ""
        if kind == phase:
            return
        if kind == BEFORE[phase] or (event["event"], phase) == ("run-started", "stage"):
            pause_s, slice_s = FINE
        # A client first closes the run that the cut before this one ended.
        closes = event["event"] == "run-ended" and event["outcome"] not in (
            "settled",
            "undone",
            "abandoned",
            "finished",
        )
        assert not closes, f"the deploy ended before {phase}: {event}"


@pytest.mark.parametrize(("kind", "phase"), [(kind, phase) for kind, phases in PHASES.items() for phase in phases])
def test_after_a_power_cut_in_the_phase_the_host_serves_a_good_release_by_itself(
    good: Callable[[str], tuple[Host, Operator]], kind: str, phase: str
) -> None:
    host, operator = good(kind)
    # A phase may be over before the cut; then that was a cut in the next one, as good as any, and this one is tried
    # again.
    struck_in = [cut_and_check(host, operator, phase)]
    while struck_in[-1] != phase:
        assert len(struck_in) < 4, f"no cut struck in {phase}, but in {struck_in}"
        struck_in.append(cut_and_check(host, operator, phase))


def cut_and_check(host: Host, operator: Operator, phase: str) -> str:
    """Cut the power in (or just after) the phase, prove what the host does by itself; return where it struck."""
    before = links(host)["last-good"]
    known = len(events(host))
    client = operator.process("deploy", "--profile", OTHER[before.rpartition("-")[0]], "--host", host.name, "--json")
    try:
        freeze_in(host, client, phase, known)
        host.power_off()
    finally:
        if client.returncode is None:
            os.killpg(client.pid, signal.SIGKILL)
            client.communicate(timeout=20)

    host.power_on()
    wait_serving(host)

    struck = events(host)[known:]
    committed = [e["release"] for e in struck if e["event"] in ("committed", "confirmed-late")]
    expected = committed[0] if committed else before
    found = links(host)
    assert (found["current"], found["last-good"]) == (expected, expected)
    assert "pending" not in found
    assert {environ["OPS_RELEASE"] for environ in ranks(host).values()} == {expected}
    assert len(ranks(host)) == 8
    if begun(struck) in ("stage", "arm", "drain", "stop", "activate", "start", "gate"):
        assert expected == before
    wait_for_gpus(host)
    status = operator.ops("status", "--host", host.name)
    assert (status.host["outcome"], status.host["release"]) == ("serving", expected), status
    return begun(struck)


def wait_for_gpus(host: Host, deadline_s: float = 20) -> None:
    """Wait until nothing of the time before the cut is on the GPUs: the simulated ones forget it a moment late."""
    deadline = time.monotonic() + deadline_s
    while gpu_holders(host) != set(ranks(host)):
        assert time.monotonic() < deadline, (
            f"GPU memory is held by {gpu_holders(host)}, the ranks are {set(ranks(host))}"
        )
        time.sleep(0.5)


def begun(struck: list[dict[str, Any]]) -> str:
    """Return the last phase that the client began."""
    kinds = [e["step"]["kind"] for e in struck if e["event"] == "step-started" and not e.get("recovery")]
    return str(kinds[-1])


def test_after_all_those_cuts_deploy_and_rollback_work_as_ever(
    good: Callable[[str], tuple[Host, Operator]],
) -> None:
    for kind in PHASES:
        host, operator = good(kind)
        before = links(host)["last-good"]
        release = operator.deploy(host, OTHER[before.rpartition("-")[0]])
        assert operator.ops("verify", "--host", host.name).code == 0
        back = operator.ops("rollback", "--host", host.name)
        assert back.code == 0, back
        assert links(host)["current"] != release
