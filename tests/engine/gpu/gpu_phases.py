"""The phases of a GPU run. Each step is done once, whatever call it falls into; what it found goes to `lab.state`."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import engine_results as results
import nccl_words
import real_host
from by_hand import compared
from gpu_lab import Findings, Lab, gpus, memory, metrics
from real_host import check, verdicts, wait_for

BASELINE, FIVE = "lab-gpu-baseline", "lab-gpu-eagle3-5step"
WRONG_IDS = [1, 3, 4]
START_S, FIRST_START_S, GATE_S = 40.0, 110.0, 20.0
"""What a step takes on an H200, seconds: an engine's start (the first compiles kernels), and a gate."""
GRAPH = re.compile(r"Capture (?P<what>.*?) (?:CUDA|cuda) graph end.*?elapsed=(?P<s>[\d.]+) s, mem usage=(?P<gb>[\d.]+)")


def machine(found: Findings, engine_python: Path, nvidia_smi: Path) -> None:
    """Before anything runs: all GPUs, versions, memory that is in use anyway."""
    found.once("idle", 5, lambda: memory(nvidia_smi))
    found.once("gpus", 5, lambda: gpus(nvidia_smi))
    found.once("machine", 5, results.machine)
    packages = ("sglang", "sglang-kernel", "torch", "triton", "transformers", "flashinfer-python", "nvidia-nccl-cu13")
    found.once("versions", 30, lambda: results.versions_of(engine_python, packages))


def admitted(lab: Lab) -> None:
    """The baseline, and five steps that beat it."""
    lab.once(f"{lab.prefix}table/0", FIRST_START_S + GATE_S, partial(_deployed, lab, BASELINE))
    lab.once(f"{lab.prefix}table/5", START_S + GATE_S, partial(_deployed, lab, FIVE))


def by_hand(lab: Lab) -> None:
    """The deployed server against one that a person launched, measured in turns."""
    _serve_five(lab)
    compared(lab, needs_s=2 * START_S + 60)


def slower(lab: Lab) -> None:
    """One step is slower than the baseline."""
    _serve_five(lab)
    lab.once("table/1", 2 * START_S + GATE_S, partial(_deployed, lab, "lab-gpu-eagle3-1step"))


def refusals(lab: Lab) -> None:
    """A rewired draft before it is loaded, and a draft of random weights."""
    _serve_five(lab)
    lab.once("wiring/deploy", 10, partial(_rewired_deploy, lab))
    lab.once("random-draft", 2 * START_S + GATE_S, partial(_deployed, lab, "lab-gpu-random-draft"))


def stop_and_kill(lab: Lab) -> None:
    """What stop, a wrong wiring, kill -9 and rollback leave behind."""
    if "stop" not in lab.state:
        _serve_five(lab)
    lab.once("stop", 10, partial(_stopped, lab))
    lab.once("wiring/start", START_S + 10, partial(_rewired_start, lab))
    lab.once("kill/launcher", START_S + 10, lambda: _killed(lab, lab.host.launcher))
    lab.once("rollback", START_S + 15, partial(_rolled_back, lab))
    lab.once("kill/rank", 10, lambda: _killed(lab, lambda: lab.host.schedulers()[0], wait=False))
    lab.once("stop/last", 10, partial(_stopped, lab))


def table(lab: Lab) -> None:
    """2 and 3 steps. Two are admitted whatever their speed, to save the way back."""
    lab.once("table/2", START_S + GATE_S, partial(_deployed, lab, "lab-gpu-eagle3-2step", lab.lifted))
    lab.once("table/3", START_S + GATE_S, partial(_deployed, lab, "lab-gpu-eagle3-3step"))


def nccl(lab: Lab) -> None:
    """Two NCCL sets over two GPUs, admitted whatever their speed: in each rank's environment, in NCCL's own words."""
    try:
        needs_s = START_S + GATE_S + 10
        lab.once("nccl/baseline", needs_s, partial(_deployed, lab, "lab-gpu-tp2-baseline", lab.lifted))
        for name in ("lab-gpu-tp2-ll", "lab-gpu-tp2-simple"):
            lab.once(f"nccl/{name}", START_S + GATE_S, partial(_nccl_set, lab, name))
    finally:
        if lab.host.engine_processes():
            lab.once("nccl/stop", 0, partial(_stopped, lab))


PHASES = {
    "admitted": admitted,
    "by-hand": by_hand,
    "slower": slower,
    "refusals": refusals,
    "stop-and-kill": stop_and_kill,
    "table": table,
    "nccl": nccl,
}
"""In the order of their worth, for a machine that is had for minutes."""
SIDE_BY_SIDE = (("admitted", "by-hand", "refusals", "table"), ("admitted", "slower", "stop-and-kill"))
"""What the first and the second of two hosts do at the same time, with one GPU each."""


def _serve_five(lab: Lab) -> None:
    """Five steps serve (again): a later call may find another release, or an engine that an earlier one stopped."""
    status = lab.host.on_host("status")
    if (status["state"], status["profile"]) != ("serving", FIVE):
        host = lab.host.on_host("deploy", "--profile", FIVE)
        assert host["exit_code"] == 0, lab.host.explain(host)


def _deployed(lab: Lab, profile: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Deploy and keep everything that is worth knowing of it."""
    host = lab.host.on_host("deploy", "--profile", profile, environment=environment)
    gate = host["gate"] or {"verdict": None, "checks": [], "figures": {}}
    found = {
        "profile": profile,
        "outcome": host["outcome"],
        "exit_code": host["exit_code"],
        "message": host["message"],
        "verdict": gate["verdict"],
        "checks": verdicts(host),
        "words": {c["name"]: c["message"] for c in gate["checks"] if c["outcome"] in ("fail", "inconclusive")},
        "figures": gate["figures"],
        "phases": host["phases"],
        "threshold_lifted": bool(environment),
    }
    print(f"   {profile}: {host['outcome']}, exit {host['exit_code']}: {host['message'][:300]}", flush=True)
    if host["exit_code"] == 0:
        found |= {"server_info": json.loads(lab.get("/server_info")), "graphs": _graphs(lab), "memory": lab.memory()}
    found["logs"] = {
        file.name: {"sha256": results.digest(file), "bytes": file.stat().st_size}
        for file in sorted((lab.host.instance / "logs").glob(f"{profile}-*.log"))
    }
    return found


def _graphs(lab: Lab) -> list[dict[str, Any]]:
    """CUDA graphs captured since the present start, with their memory."""
    text = lab.host.engine_log().read_text(errors="replace").rpartition("== ops start ")[2]
    return [{"graph": m["what"], "seconds": float(m["s"]), "gb": float(m["gb"])} for m in GRAPH.finditer(text)]


def _rewired_deploy(lab: Lab) -> dict[str, Any]:
    with lab.host.other_layer_ids(WRONG_IDS):
        return _deployed(lab, "lab-gpu-eagle3-3step")


def _rewired_start(lab: Lab) -> dict[str, Any]:
    """Start with other layer ids. Nothing may run before: an engine that serves keeps the ids that it loaded."""
    if lab.host.engine_processes():
        lab.host.on_host("stop")
    assert not lab.host.engine_processes()
    with lab.host.other_layer_ids(WRONG_IDS):
        host = lab.host.on_host("start")
    return {
        "loaded_anew": True,
        "ids": WRONG_IDS,
        "exit_code": host["exit_code"],
        "checks": verdicts(host),
        "words": check(host, "wiring")["message"],
        "accept_length": host["gate"]["figures"].get("accept_length"),
        "admitted": lab.host.on_host("status")["admitted"],
    }


def _stopped(lab: Lab) -> dict[str, Any]:
    processes, before = lab.host.engine_processes(), lab.memory()
    host = lab.host.on_host("stop")
    after = lab.wait_gone(processes, idle=True)
    return {
        "exit_code": host["exit_code"],
        "processes": len(processes),
        "before": before,
        "after": after,
        "phases": host["phases"],
        "processes_after": len(lab.host.engine_processes()),
    }


def _killed(lab: Lab, whom: Callable[[], int], *, wait: bool = True) -> dict[str, Any]:
    """kill -9, and what becomes of the engine's other processes and of their memory; `wait` for the next start."""
    wait_for("an engine that serves", lambda: lab.host.on_host("status")["state"] == "serving", 240, 2.0)
    processes, before, victim = lab.host.engine_processes(), lab.memory(), whom()
    title = processes[victim]
    os.kill(victim, signal.SIGKILL)
    after = lab.wait_gone(processes, idle=False)
    found = {"victim": title[:80], "processes": len(processes), "before": before, "after": after}
    begun = time.monotonic()
    if not wait:
        return found
    wait_for("the supervisor's next start", lambda: lab.host.on_host("status")["state"] == "serving", 240, 2.0)
    return {**found, "serves_again_s": round(time.monotonic() - begun, 1)}


def _rolled_back(lab: Lab) -> dict[str, Any]:
    processes, before = lab.host.engine_processes(), lab.memory()
    host = lab.host.on_host("rollback", "--to", "baseline")
    own = lab.host.engine_processes()
    after = lab.wait_gone(processes, idle=False)
    return {
        "exit_code": host["exit_code"],
        "profile": host["profile"],
        "checks": verdicts(host),
        "before": before,
        "after": after,
        "strangers": [holder for holder in after["holders"] if holder["pid"] not in own],
    }


def _nccl_set(lab: Lab, profile: str) -> dict[str, Any]:
    """Deploy, and read each rank's NCCL variables as its process holds them, and as NCCL says that it read them."""
    # In a file of its own NCCL writes by the line; on a log's pipe by blocks of 4096 bytes, the last of them never.
    file = {"OPS_ENV__NCCL_DEBUG_FILE": str(lab.host.project / "nccl.%p.log")}
    found = _deployed(lab, profile, {**lab.lifted, **file})
    ranks = {pid: real_host.title(pid) for pid in lab.host.schedulers()}
    texts = [lab.host.engine_log().read_text(errors="replace").rpartition("== ops start ")[2]]
    for pid in ranks:
        if (own := lab.host.project / f"nccl.{pid}.log").exists():
            texts.append(own.read_text(errors="replace"))
    spent = metrics(lab.get("/metrics"), "sglang:forward_execution_seconds_total", "category")
    held = {title: nccl_words.held(real_host.environ(pid) or []) for pid, title in ranks.items()}
    return {**found, "ranks": held, **nccl_words.said("\n".join(texts)), "device_timer_s": spent}
