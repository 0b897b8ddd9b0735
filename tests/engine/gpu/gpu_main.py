"""Run the whole product against the real SGLang on one or two NVIDIA GPUs, and write the results (see README.md)."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import engine_results as results
import gpu_report
import real_host
from gpu_lab import Lab, machine_environment
from gpu_phases import PHASES
from real_host import RealHost

MORE = 75


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    begun = time.monotonic()
    lab = make(options, begun)
    finished = [lab.attempt(name, PHASES[name]) for name in options.phases]
    gpu_report.write(lab.state, lab.failures, options.out)
    for words, holds, seen in gpu_report.claims(lab.state):
        print(f"{ {True: 'yes', False: 'NO ', None: '-  '}[holds] } {words}: {seen[:200]}")
    print(f"{time.monotonic() - begun:.0f} s; results in {options.out}")
    if options.down:
        lab.host.box.down()
    if not all(finished):
        return MORE
    bad = lab.failures or any(holds is not True for _, holds, _ in gpu_report.claims(lab.state))
    return 1 if bad else 0


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="the whole product against the real engine on GPUs")
    parser.add_argument("--engine-python", type=Path, required=True, help="a Python that has SGLang")
    parser.add_argument("--work", type=Path, default=Path(".cache/engine-gpu"), help="host, models, logs, state")
    parser.add_argument("--out", type=Path, default=results.RESULTS, help="where the results are written")
    parser.add_argument("--budget-s", type=float, default=7200, help="begin nothing that would take longer than this")
    parser.add_argument("--phases", type=_phases, default=list(PHASES), help=f"comma-separated: {','.join(PHASES)}")
    parser.add_argument("--down", action="store_true", help="remove the host at the end")
    found = parser.parse_args(argv)
    found.work = found.work.resolve()
    # Not resolved: a virtual environment's Python is a link, and is one by its place.
    found.engine_python = found.engine_python.absolute()
    return found


def _phases(text: str) -> list[str]:
    names = text.split(",")
    unknown = set(names) - set(PHASES)
    if unknown:
        raise argparse.ArgumentTypeError(f"no such phase: {', '.join(sorted(unknown))}")
    return names


def make(options: argparse.Namespace, begun: float) -> Lab:
    """The host, and what earlier calls found."""
    nvidia_smi = shutil.which("nvidia-smi")
    if nvidia_smi is None:
        sys.exit("no nvidia-smi on the PATH: this needs a machine with an NVIDIA GPU and its driver")
    tools = [nvidia_smi, *filter(None, map(shutil.which, ("nvcc", "ninja", "g++")))]
    folders = list(dict.fromkeys(str(Path(tool).parent) for tool in tools))
    host = real_host.up(
        options.work,
        "gpu-lab",
        options.engine_python,
        search_path=folders,
        environment=machine_environment(),
        echo=True,
    )
    pin(host, installed_version(host))
    return lab_of(host, Path(nvidia_smi), begun + options.budget_s)


def lab_of(host: RealHost, nvidia_smi: Path, deadline: float) -> Lab:
    lab = Lab(host, nvidia_smi, host.project / "state.json", deadline)
    if lab.state_file.exists():
        lab.state = json.loads(lab.state_file.read_text())
        host.commands = lab.state["commands"]
    return lab


def installed_version(host: RealHost) -> str:
    """The SGLang of this machine. Exits where there is none."""
    found = results.versions_of(host.engine_python, ["sglang"]).get("sglang")
    if found is None:
        sys.exit(f"{host.engine_python} has no SGLang: name a Python that has it by --engine-python")
    return found


def pin(host: RealHost, version: str) -> None:
    """Let the lab's stack pin `version`, in the copy of `envs/` that this run deploys from."""
    stack = host.project / "envs" / "stacks" / "lab-gpu.yaml"
    stack.write_text(re.sub(r"(?m)^(engine_version: |  - sglang==).*$", rf"\g<1>{version}", stack.read_text()))
    done = subprocess.run(
        [sys.executable, "-m", "ops", "profile", "validate"],
        env={**os.environ, **host.environment, "OPS_PROJECT": str(host.project)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"SGLang {version} is installed, and the lab's profiles do not fit it:\n{done.stderr}")
