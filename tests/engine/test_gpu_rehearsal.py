"""The GPU script itself, rehearsed with the simulated engine and its stub of nvidia-smi.

Minutes on a GPU are dear. If this fails, a person who has got hold of one spends them on a bug of the script.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import real_host

sys.path.append(str(Path(__file__).parent / "gpu"))

import by_hand
import gpu_report
from gpu_lab import Lab
from gpu_main import lab_of, pin
from gpu_phases import PHASES

pytestmark = [pytest.mark.sandbox, pytest.mark.long, pytest.mark.timeout(1800)]

LIFTED = {
    "OPS_GATES__SPEED__MIN_SPEEDUP": "0.1",
    "OPS_GATES__SPEED__MAX_TTFT_RATIO": "100",
    "OPS_GATES__ACCEPTANCE__MIN_ACCEPT_LENGTH": "1.2",
}
"""The simulated engine has speeds and lengths of a large model on eight PCIe GPUs, where other step counts win."""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(by_hand, "ROUNDS", 1)
    monkeypatch.setattr(by_hand, "PAIRS", 2)
    box = tmp_path / ".sandbox" / "rehearsal"
    host = real_host.up(
        tmp_path,
        "rehearsal",
        box / "engine" / "bin" / "python",
        search_path=[str(box / "bin")],
        environment=LIFTED,
        time_scale=20.0,
        load_s=4.0,
    )
    # What the draft was trained on, in the engine's counting; without it the simulation takes the model's default.
    (host.models / "tiny-llama" / "simulation.json").write_text(json.dumps({"right_layer_ids": [1, 3, 5]}))
    pin(host, "0.5.23")  # what the simulated engine imitates
    made = lab_of(host, box / "bin" / "nvidia-smi", time.monotonic() + 1500)
    made.lifted = LIFTED
    yield made
    host.box.down()
    assert host.engine_processes() == {}


def test_every_phase_runs_through_and_the_claims_that_need_no_gpu_hold(lab: Lab, tmp_path: Path) -> None:
    ended = {name: lab.attempt(name, phase) for name, phase in PHASES.items()}
    assert lab.failures == {}
    assert all(ended.values()), ended
    gpu_report.write(lab.state, lab.failures, tmp_path / "results")
    judged = {
        claim["claim"]: claim for claim in json.loads((tmp_path / "results/engine-gpu.json").read_text())["claims"]
    }
    assert None not in {claim["holds"] for claim in judged.values()}
    of_the_gpu = ("the gate refuses 1 step", "deployed is as fast", "lab-gpu-tp2")
    wrong = [c for c in judged.values() if not c["holds"] and not c["claim"].startswith(of_the_gpu)]
    assert wrong == []
    page = (tmp_path / "results/engine-gpu.md").read_text()
    assert "| 5 | deployed |" in page


def test_a_call_whose_time_is_up_begins_nothing_and_the_next_one_goes_on(lab: Lab) -> None:
    lab.deadline = time.monotonic() + 5
    assert lab.attempt("machine", PHASES["machine"]) is False
    assert list(lab.host.commands) == []
    lab.deadline = time.monotonic() + 120
    assert lab.attempt("machine", PHASES["machine"])
    again = lab_of(lab.host, lab.nvidia_smi, lab.deadline)
    assert again.state["idle"] == lab.state["idle"]
