"""`orphan-on-port`: if this breaks, nobody knows whether the gate would notice a foreign process that answers in the
name of the old release: the most convincing liar there is on a port."""

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rig import until

from ops.sandbox.address import listener_of, listening_inode
from ops.sandbox.daemons import detach
from ops.sandbox.environment import environment
from ops.sandbox.host import Sandbox
from ops.sandbox.layout import ENGINE_PORT, Daemon
from ops.sandbox.processes import alive, kill

pytestmark = pytest.mark.sandbox
Factory = Callable[..., Sandbox]


def start_engine(box: Sandbox, release: str, seed: int) -> Daemon:
    """Start a release as launch.sh does; `seed` is only there to tell its answers from another's."""
    instance = box.root / "default"
    (instance / "releases" / release).mkdir(parents=True, exist_ok=True)
    argv = [str(box.layout.engine_python), "-m", "sglang.launch_server", "--model-path", str(box.layout.target)]
    argv += [
        "--tp",
        "2",
        "--trust-remote-code",
        "--host",
        box.address,
        "--port",
        str(ENGINE_PORT),
        "--random-seed",
        str(seed),
    ]
    variables = {"OPS_RELEASE": release, "OPS_INSTANCE_DIR": str(instance), "SPT_NOENV": "1"}
    return detach(argv, environment(box.layout) | variables, box.layout.log / f"{release}.log", box.layout.home)


def journal(box: Sandbox, **event: Any) -> None:
    with (box.root / "default" / "journal.jsonl").open("a") as file:
        file.write(json.dumps({"at": time.time(), "run": "r1", **event}) + "\n")


def run_started(box: Sandbox, purpose: str, release: str) -> None:
    journal(box, event="run-started", command="deploy", purpose=purpose, profile="p", release=release)


def seed_served(box: Sandbox) -> int | None:
    try:
        with urllib.request.urlopen(f"http://{box.address}:{ENGINE_PORT}/server_info", timeout=5) as answer:
            return int(json.load(answer)["random_seed"])
    except OSError:
        return None


def stop_engine(box: Sandbox, engine: Daemon) -> None:
    kill(engine)
    until(lambda: not alive(engine), "the engine is gone")
    until(lambda: listening_inode(box.address, ENGINE_PORT) is None, "the port is free")


def orphan_state(box: Sandbox) -> dict[str, Any]:
    return next(fault for fault in box.state().faults if fault["name"] == "orphan-on-port")


def struck(box: Sandbox, stays_until: str | None = None) -> Daemon:
    """A sandbox whose candidate new-2 was robbed of the port by a copy of old-1; returns the candidate."""
    old = start_engine(box, "old-1", seed=111)
    until(lambda: seed_served(box) == 111, "the old release serves")
    box.fault("orphan-on-port", until=stays_until)
    until(lambda: orphan_state(box).get("copied_at"), "the old release's answers are copied")
    stop_engine(box, old)
    run_started(box, "candidate", "new-2")
    candidate = start_engine(box, "new-2", seed=222)
    until(lambda: orphan_state(box)["state"] == "serving", "the orphan serves")
    return candidate


def test_the_port_is_free_for_the_stop_proof_and_taken_before_the_candidate_binds(sandbox: Factory) -> None:
    box = sandbox(load_s=10)
    candidate = struck(box)
    assert seed_served(box) == 111, "it answers like the old release"
    holder = listener_of(box.address, ENGINE_PORT)
    assert holder is not None and "orphan.py" in holder and f"pid {candidate.pid} " not in holder
    assert orphan_state(box)["release"] == "new-2"
    until(lambda: not alive(candidate), "the candidate ends, its port is taken")
    assert "address already in use" in (box.layout.log / "new-2.log").read_text()


def test_the_port_stays_free_while_nothing_starts(sandbox: Factory) -> None:
    box = sandbox(load_s=1)
    old = start_engine(box, "old-1", seed=111)
    until(lambda: seed_served(box) == 111, "the old release serves")
    box.fault("orphan-on-port")
    until(lambda: orphan_state(box).get("copied_at"), "the answers are copied")
    stop_engine(box, old)
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        assert listening_inode(box.address, ENGINE_PORT) is None
        time.sleep(0.005)
    assert orphan_state(box)["state"] == "waiting"


def test_a_baseline_measurement_is_not_struck(sandbox: Factory) -> None:
    box = sandbox(load_s=1)
    box.fault("orphan-on-port")
    (box.root / "default").mkdir(parents=True)
    run_started(box, "baseline", "base-1")
    start_engine(box, "base-1", seed=333)
    until(lambda: seed_served(box) == 333, "the baseline serves")
    assert orphan_state(box)["state"] == "waiting"


def test_it_leaves_when_the_run_goes_back(sandbox: Factory) -> None:
    box = sandbox(load_s=1)
    candidate = struck(box)
    journal(box, event="step-started", step="stop", seq=9, recovery=True)
    kill(candidate)
    until(lambda: listening_inode(box.address, ENGINE_PORT) is None, "the port is free", within_s=2)
    start_engine(box, "old-1", seed=111)
    until(lambda: seed_served(box) == 111, "the rollback serves")
    assert orphan_state(box)["state"] == "left"
    box.clear_faults()
    assert box.state().faults == []


def test_told_to_stay_it_stays_until_it_is_cleared(sandbox: Factory) -> None:
    box = sandbox(load_s=1)
    struck(box, stays_until="cleared")
    journal(box, event="step-started", step="stop", seq=9, recovery=True)
    time.sleep(0.3)
    assert seed_served(box) == 111
    box.clear_faults()
    assert listening_inode(box.address, ENGINE_PORT) is None and not any(
        "orphan.py" in process.title for process in box.processes()
    )


def test_after_a_reboot_it_is_gone(sandbox: Factory, tmp_path: Path) -> None:
    box = sandbox(load_s=1)
    box.fault("orphan-on-port")
    assert orphan_state(box)["state"] == "waiting"
    box.fault("reboot", for_s=0.1)
    assert orphan_state(box)["state"] == "ended"
    assert not any("orphan.py" in process.title for process in box.processes())
