"""The GPU script itself, rehearsed with the simulated engine and its stub of nvidia-smi.

Minutes on a GPU are dear. If this fails, a person who has got hold of one spends them on a bug of the script.
"""

import argparse
import copy
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import real_host

sys.path.append(str(Path(__file__).parent / "gpu"))

import by_hand
import engine_results
import gpu_claims
import gpu_main
import gpu_phases as phases
import gpu_report
import nccl_words
from gpu_lab import Findings, Lab, of_one_gpu
from gpu_main import Machine, go_through, pin

LIFTED = {
    "OPS_GATES__SPEED__MIN_SPEEDUP": "0.1",
    "OPS_GATES__SPEED__MAX_TTFT_RATIO": "100",
    "OPS_GATES__ACCEPTANCE__MIN_ACCEPT_LENGTH": "1.2",
}
"""The simulated engine has speeds and lengths of a large model on eight PCIe GPUs, where other step counts win."""


class Rehearsed(Machine):
    """Sandboxes with the simulated engine in the place of GPUs; each shows GPUs of its own."""

    def __init__(self, folder: Path, count: int, side_by_side: bool) -> None:
        found = Findings(folder / "state.json", time.monotonic() + 1500, "rehearsal")
        super().__init__(argparse.Namespace(work=folder), found, folder / "no-nvidia-smi")
        self.count = count
        self.side_by_side = side_by_side

    def look(self) -> bool:
        """The machine is looked at before its hosts are up; here the first host brings nvidia-smi and the engine."""
        lab = self._lab("look", self.nvidia_smi, {})
        done = self.found.attempt("machine", lambda: phases.machine(self.found, lab.host.engine_python, lab.nvidia_smi))
        lab.host.box.down()
        self.labs.remove(lab)
        return done

    def gpus(self) -> list[str]:
        return [str(index) for index in range(self.count)]

    def _lab(self, name: str, nvidia_smi: Path, environment: Mapping[str, str], prefix: str = "") -> Lab:
        project = self.options.work / name
        box = project / ".sandbox" / name
        host = real_host.up(
            project,
            name,
            box / "engine" / "bin" / "python",
            search_path=[str(box / "bin")],
            environment={**LIFTED, **environment},
            time_scale=20.0,
            load_s=4.0,
        )
        # What the draft was trained on, in the engine's counting; without it the simulation takes the model's default.
        (host.models / "tiny-llama" / "simulation.json").write_text(json.dumps({"right_layer_ids": [1, 3, 5]}))
        pin(host, "0.5.23")  # what the simulated engine imitates
        lab = Lab(host, box / "bin" / "nvidia-smi", self.found, prefix, LIFTED)
        self.labs.append(lab)
        return lab


@pytest.fixture(params=[(2, False), (2, True)], ids=["one after another", "side by side"])
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rehearsed]:
    monkeypatch.setattr(by_hand, "ROUNDS", 1)
    made = Rehearsed(tmp_path, *request.param)
    made.found.write = lambda: gpu_report.write(made.found.state, made.found.failures, tmp_path / "results")
    yield made
    for lab in made.labs:
        lab.host.box.down()
        assert lab.host.engine_processes() == {}


@pytest.mark.sandbox
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_phase_runs_through_and_the_claims_that_need_no_gpu_hold(machine: Rehearsed, tmp_path: Path) -> None:
    complete = go_through(machine, list(phases.PHASES), side_by_side=machine.side_by_side)
    assert machine.found.failures == {}
    assert complete
    document = json.loads((tmp_path / "results/engine-gpu.json").read_text())
    judged = {claim["claim"]: claim for claim in document["claims"]}
    assert [words for words, claim in judged.items() if claim["holds"] is None] == []
    of_the_gpu = ("the gate refuses 1 step", "deployed is as fast", "lab-gpu-tp2")
    wrong = [c for c in judged.values() if c["holds"] is False and not c["claim"].startswith(of_the_gpu)]
    assert wrong == []
    page = (tmp_path / "results/engine-gpu.md").read_text()
    assert "| 5 | 0 | deployed |" in page
    if machine.side_by_side:
        assert {row["host"] for row in document["commands"]} == {"gpu-lab", "gpu-lab-second", "gpu-lab-both"}


def test_a_call_whose_time_is_up_begins_nothing_and_the_next_one_goes_on(tmp_path: Path) -> None:
    def never() -> None:
        raise AssertionError("it began")

    late = Findings(tmp_path / "state.json", time.monotonic() + 5, "abc")
    assert late.attempt("phase", lambda: late.once("step", 10, never)) is False
    assert late.failures == {} and "step" not in late.state
    late.deadline += 100
    assert late.attempt("phase", lambda: late.once("step", 10, lambda: 7))
    again = Findings(tmp_path / "state.json", time.monotonic(), "abc+")  # it wrote its results
    assert again.once("step", 10, never) == 7


def test_what_another_commit_found_is_dropped(tmp_path: Path) -> None:
    earlier = Findings(tmp_path / "state.json", time.monotonic() + 100, "abc")
    earlier.once("step", 10, lambda: 7)
    later = Findings(tmp_path / "state.json", time.monotonic() + 100, "def")
    assert later.anew and "step" not in later.state
    later.once("step", 10, lambda: 8)
    assert json.loads((tmp_path / "state.json").read_text())["project"] == "def"


def test_an_unfinished_run_goes_on_and_after_a_whole_one_all_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    complete = iter([False, True, True])

    def one_step(machine: Machine, names: list[str], *, side_by_side: bool) -> bool:
        machine.found.once("step", 0, lambda: measured.append("step"))
        return next(complete)

    monkeypatch.setattr(gpu_main, "go_through", one_step)
    monkeypatch.setattr(gpu_main.shutil, "which", lambda tool: tool)
    monkeypatch.setattr(engine_results, "project_version", lambda repository: "abc")
    left = tmp_path / "work" / "gpu-lab" / "hosts.yml"
    seen = []
    for _ in range(3):
        gpu_main.main(["--engine-python", "python", "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")])
        seen.append((len(measured), left.exists()))
        left.parent.mkdir(exist_ok=True)
        left.touch()
    assert seen == [(1, False), (1, True), (2, False)]


@pytest.mark.sandbox
def test_a_run_that_begins_anew_finds_no_host_of_an_earlier_one(tmp_path: Path) -> None:
    host = real_host.up(tmp_path / "gpu-lab", "gpu-lab", Path(sys.executable), time_scale=20.0)
    try:
        processes = host.box.processes()
        assert processes
        gpu_main.remove_hosts(tmp_path)
        assert not host.project.exists()
        assert [process for process in processes if real_host.alive(process.pid)] == []
    finally:
        if host.project.exists():
            host.box.down()


@pytest.mark.parametrize("profile", gpu_claims.NCCL_PROFILES)
def test_an_nccl_set_is_proven_only_by_a_deploy_whose_ranks_hold_it(profile: str) -> None:
    found = json.loads((engine_results.RESULTS / "engine-gpu.json").read_text())

    def holds(**changes: Any) -> bool | None:
        state = copy.deepcopy(found)
        state[f"nccl/{profile}"].update(changes)
        return next(holds for words, holds, _ in gpu_claims.claims(state) if words.startswith(f"{profile}:"))

    ranks = found[f"nccl/{profile}"]["ranks"]
    other = "Simple" if profile == "lab-gpu-tp2-ll" else "LL"
    assert holds() is True
    assert holds(exit_code=3) is False
    assert holds(ranks={rank: {} for rank in ranks}) is False
    assert holds(ranks={rank: {**held, "NCCL_PROTO": other} for rank, held in ranks.items()}) is False
    less = {rank: {name: value for name, value in held.items() if name != "NCCL_ALGO"} for rank, held in ranks.items()}
    assert holds(ranks=less) is False


def test_an_nvidia_smi_of_one_gpu_asks_the_machines_own_about_that_gpu_only(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text('#!/bin/sh\necho "$@"\n')
    own.chmod(0o755)
    script, variables = of_one_gpu(own, "1", tmp_path / "folder")
    said = [
        subprocess.run([script, *words], capture_output=True, text=True, check=True).stdout.split()
        for words in (["--query-gpu=uuid", "--format=csv"], ["topo", "-m"])
    ]
    assert said == [["--query-gpu=uuid", "--format=csv", "-i", "1"], ["topo", "-m"]]
    assert variables["OPS_ENV__CUDA_VISIBLE_DEVICES"] == "1"


def test_a_page_holds_no_log_and_repeated_commands_are_one_row(tmp_path: Path) -> None:
    row = {"host": "gpu-lab", "command": "ops status", "exit_code": 0}
    state = {"commands": [{**row, "seconds": 2.1}, {**row, "seconds": 2.6}, {**row, "exit_code": 2, "seconds": 3.0}]}
    gpu_report.write(state, {"nccl": "AssertionError: it hangs\n" + "a line of a log\n" * 500}, tmp_path)
    page = (tmp_path / "engine-gpu.md").read_text()
    assert "AssertionError: it hangs" in page and "a line of a log" not in page
    assert "| gpu-lab | `ops status` x 2 | 0 | 2.1 to 2.6 |" in page
    assert "a line of a log" in json.loads((tmp_path / "engine-gpu.json").read_text())["failures"]["nccl"]


def test_words_of_nccl_are_read_from_a_log_whose_blocks_end_amid_a_line() -> None:
    recordings = real_host.REPOSITORY / "tests/recordings/sglang-0.5.17-h200"
    says = nccl_words.said((recordings / "nccl_blocks_ll.log").read_text(errors="replace"))["nccl_says"]
    first, second = (set(says[gpu]) for gpu in "01")
    held = json.loads((recordings / "nccl_blocks_ll.json").read_text())["ranks"]["sglang::scheduler_TP1"]
    assert says["1"] == {name: value for name, value in held.items() if name != "NCCL_DEBUG"}
    assert second - first == {"NCCL_ALGO", "NCCL_NTHREADS", "NCCL_PROTO"}  # still in rank 0's buffer
    assert (
        nccl_words.said("h:1:1 [0] NCCL INFO NCCL_PROTO set by environment to Lh:2:2 [1] NCCL INFO x")["nccl_says"]
        == {}
    )
