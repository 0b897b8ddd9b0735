"""What the phases of a GPU run share: its hosts, what was found so far, the time that is left, and nvidia-smi."""

import csv
import io
import json
import os
import subprocess
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import real_host
from real_host import RealHost

PORT = 8000
FREE_WITHIN_S = 30.0
IDLE_TOLERANCE_MIB = 64
"""A driver may keep a few MiB more after its first use than on a machine that was never used."""
GPU_FIELDS = ("index", "uuid", "name", "driver_version", "memory.total", "memory.used")


class OutOfTime(Exception):
    """What comes next would not fit into the time that this call has."""


@dataclass
class Findings:
    """What a run found, by step; kept in `file` after each, so that a later call goes on. Its hosts share it.

    What a run of another commit found is dropped: it says nothing of this one.

    Attributes:
        deadline: monotonic seconds; no step begins that would not end before.
        project: the version that runs, as `project_version` says it.
        write: writes the results; called after each step, so that a run that is cut off leaves what it found.
    """

    file: Path
    deadline: float
    project: str
    state: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    write: Callable[[], None] = lambda: None
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        kept = json.loads(self.file.read_text()) if self.file.exists() else {}
        # The run's own results make files differ from the commit.
        if kept.get("project", "").rstrip("+") == self.project.rstrip("+"):
            self.state = kept
        elif kept:
            print(f"-- {self.file} is of project {kept.get('project')}, this is {self.project}: begun anew", flush=True)
        self.anew = not self.state
        self.state.setdefault("project", self.project)
        self.state.setdefault("commands", [])
        self.state.setdefault("seconds", {})

    def once(self, step: str, needs_s: float, do: Callable[[], Any]) -> Any:
        """Do a step, unless an earlier call did it. Raises: OutOfTime when `needs_s` is not left."""
        if step in self.state:
            return self.state[step]
        left_s = self.deadline - time.monotonic()
        if left_s < needs_s:
            raise OutOfTime(f"{step} needs {needs_s:.0f} s, {left_s:.0f} s are left")
        print(f"== {step} ({left_s:.0f} s left)", flush=True)
        begun = time.monotonic()
        found = do()
        seconds = round(time.monotonic() - begun, 1)
        with self.lock:
            self.state["seconds"][step] = seconds
            self.keep(step, found)
        print(f"== {step} took {seconds} s", flush=True)
        return found

    def keep(self, step: str, found: Any) -> None:
        with self.lock:
            self.state[step] = found
            temporary = self.file.with_suffix(".new")
            temporary.write_text(json.dumps(self.state, indent=1, ensure_ascii=False))
            temporary.replace(self.file)
            self.write()

    def attempt(self, name: str, phase: Callable[[], None]) -> bool:
        """Do a phase; False when time is up. A phase that fails is said, kept, and does not stop the others."""
        try:
            phase()
        except OutOfTime as error:
            print(f"-- {name}: {error}", flush=True)
            return False
        except Exception as error:
            self.failures[name] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        return True


@dataclass
class Lab:
    """One host of a run, and the GPUs that it sees.

    Attributes:
        nvidia_smi: shows the GPUs of this host only.
        prefix: before the names of steps that another host does as well.
        lifted: environment of `ops` that lifts the speed threshold, for rows that are measured, not judged.
    """

    host: RealHost
    nvidia_smi: Path
    found: Findings
    prefix: str = ""
    lifted: Mapping[str, str] = field(default_factory=lambda: {"OPS_GATES__SPEED__MIN_SPEEDUP": "0.1"})

    def __post_init__(self) -> None:
        self.host.commands = self.state["commands"]

    @property
    def state(self) -> dict[str, Any]:
        return self.found.state

    def once(self, step: str, needs_s: float, do: Callable[[], Any]) -> Any:
        return self.found.once(step, needs_s, do)

    def memory(self) -> dict[str, Any]:
        return memory(self.nvidia_smi)

    def wait_gone(self, pids: Iterable[int], *, idle: bool) -> dict[str, Any]:
        """Wait until no process of `pids` lives or holds GPU memory, and with `idle` nobody holds any.

        Returns nvidia-smi's view then, and how long it took; `left` names what stays after FREE_WITHIN_S.
        """
        known, begun = set(pids), time.monotonic()
        while True:
            seen = self.memory()
            left = [f"pid {pid} lives" for pid in known if real_host.alive(pid)]
            left += [f"pid {h['pid']} holds {h['mib']} MiB" for h in seen["holders"] if idle or h["pid"] in known]
            if idle:
                before = self.state["idle"]["used_mib"]
                over = {gpu: mib - before.get(gpu, 0) for gpu, mib in seen["used_mib"].items()}
                left += [
                    f"{gpu} has {mib} MiB more than before" for gpu, mib in over.items() if mib > IDLE_TOLERANCE_MIB
                ]
            seconds = round(time.monotonic() - begun, 1)
            if not left or seconds > FREE_WITHIN_S:
                return {**seen, "seconds": seconds, "left": left}
            time.sleep(0.2)

    def get(self, path: str) -> str:
        """What the deployed engine answers."""
        with urllib.request.urlopen(f"http://{self.host.box.address}:{PORT}{path}", timeout=60) as answer:
            text: str = answer.read().decode()
        return text


def ask_nvidia_smi(tool: Path, query: str, fields: Iterable[str]) -> list[list[str]]:
    words: list[str | Path] = [tool, f"--query-{query}={','.join(fields)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(done.stdout)) if row]


def gpus(tool: Path) -> list[dict[str, str]]:
    """The GPUs that this nvidia-smi shows."""
    return [dict(zip(GPU_FIELDS, row, strict=True)) for row in ask_nvidia_smi(tool, "gpu", GPU_FIELDS)]


def memory(tool: Path) -> dict[str, Any]:
    """What nvidia-smi shows now: MiB in use a GPU, and who holds them."""
    rows = ask_nvidia_smi(tool, "compute-apps", ("pid", "gpu_uuid", "used_memory", "process_name"))
    return {
        "used_mib": {gpu["uuid"]: int(float(gpu["memory.used"])) for gpu in gpus(tool)},
        "holders": [{"pid": int(pid), "gpu": gpu, "mib": mib, "name": name} for pid, gpu, mib, name in rows],
    }


def of_one_gpu(tool: Path, index: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """An nvidia-smi in `folder` that shows one GPU, and the overrides with which an engine sees that one only.

    So a machine with two GPUs is two hosts with one each, as two containers would be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "nvidia-smi"
    script.write_text(
        f'#!/bin/sh\ncase "$1" in\n--query-*) exec {tool} "$@" -i {index} ;;\n*) exec {tool} "$@" ;;\nesac\n'
    )
    script.chmod(0o755)
    return script, {"OPS_ENV__CUDA_VISIBLE_DEVICES": index, "OPS_ENV__CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def machine_environment() -> dict[str, str]:
    """What this shell knows of the machine's GPUs, as overrides of every profile's `env`.

    A container image may say by variables where the driver lies or what must stay switched off; a supervisor knows
    nothing of them. So they become part of the release, and the gate sees them in each rank.
    """
    prefixes = ("CUDA_", "NVIDIA_", "TORCH_", "TORCHINDUCTOR_", "NVSHMEM_", "TRITON_")
    names = ("LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CC", "CXX", "NCCL_NVLS_ENABLE")
    return {
        f"OPS_ENV__{name}": value
        for name, value in os.environ.items()
        if value and value == value.strip() and (name in names or name.startswith(prefixes))
    }


def metrics(text: str, name: str, label: str) -> dict[str, float]:
    """{value of `label`: value} of one Prometheus metric; {"": value} for series without it."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith((f"{name}{{", f"{name} ")):
            series, _, value = line.rpartition(" ")
            _, given, rest = series.partition(f'{label}="')
            found[rest.partition('"')[0] if given else ""] = float(value)
    return found
