"""Run the whole product against the real SGLang on one or two NVIDIA GPUs, and write the results (see README.md)."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import engine_results as results
import gpu_claims
import gpu_phases as phases
import gpu_report
import real_host
from gpu_lab import Findings, Lab, gpus, machine_environment, of_one_gpu
from real_host import RealHost

from ops.sandbox.host import Sandbox

MORE = 75


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    begun = time.monotonic()
    nvidia_smi = shutil.which("nvidia-smi")
    if nvidia_smi is None:
        sys.exit("no nvidia-smi on the PATH: this needs a machine with an NVIDIA GPU and its driver")
    options.work.mkdir(parents=True, exist_ok=True)
    version = results.project_version(real_host.REPOSITORY)
    found = Findings(options.work / "state.json", begun + options.budget_s, version)
    if found.anew:
        remove_hosts(options.work)
    found.write = lambda: gpu_report.write(found.state, found.failures, options.out)
    machine = Machine(options, found, Path(nvidia_smi))
    complete = go_through(machine, options.phases, side_by_side=options.side_by_side)
    found.write()
    for words, holds, seen in gpu_claims.claims(found.state):
        print(f"{ {True: 'yes', False: 'NO ', None: '-  '}[holds] } {words}: {seen[:200]}")
    print(f"{time.monotonic() - begun:.0f} s; results in {options.out}")
    if options.down:
        for lab in machine.labs:
            lab.host.box.down()
    if not complete:
        return MORE
    if not found.failures and set(options.phases) == set(phases.PHASES):
        found.file.unlink()  # the run is over: the next call measures again
    bad = found.failures or any(holds is not True for _, holds, _ in gpu_claims.claims(found.state))
    return 1 if bad else 0


def remove_hosts(work: Path) -> None:
    """Remove what an earlier run left in `work`: its engines hold GPU memory, and its models may be other ones."""
    for inventory in work.glob("*/hosts.yml"):
        project = inventory.parent
        for record in project.glob(".sandbox/*/sandbox.json"):
            Sandbox.open(record.parent.name, project=project).down()
        shutil.rmtree(project)


class Machine:
    """The hosts of a run: one that sees all GPUs or, side by side, two that see one each, and then one for both."""

    def __init__(self, options: argparse.Namespace, found: Findings, nvidia_smi: Path) -> None:
        self.options = options
        self.found = found
        self.nvidia_smi = nvidia_smi
        self.labs: list[Lab] = []

    def gpus(self) -> list[str]:
        """Indices of the GPUs that are used."""
        return [gpu["index"] for gpu in gpus(self.nvidia_smi)][:2]

    def look(self) -> bool:
        """Find out what machine this is, before anything runs on it."""
        return self.found.attempt(
            "machine", lambda: phases.machine(self.found, self.options.engine_python, self.nvidia_smi)
        )

    def whole(self, name: str = "gpu-lab") -> Lab:
        """A host that sees all GPUs."""
        return self._lab(name, self.nvidia_smi, {})

    def one_gpu(self, index: str, name: str, prefix: str) -> Lab:
        tool, environment = of_one_gpu(self.nvidia_smi, index, self.options.work / f"gpu-{index}")
        return self._lab(name, tool, environment, prefix)

    def _lab(self, name: str, nvidia_smi: Path, environment: Mapping[str, str], prefix: str = "") -> Lab:
        tools = [str(nvidia_smi), *filter(None, map(shutil.which, ("nvcc", "ninja", "g++")))]
        host = real_host.up(
            self.options.work / name,
            name,
            self.options.engine_python,
            search_path=list(dict.fromkeys(str(Path(tool).parent) for tool in tools)),
            environment={**machine_environment(), **environment},
            echo=True,
        )
        pin(host, installed_version(host))
        lab = Lab(host, nvidia_smi, self.found, prefix)
        self.labs.append(lab)
        return lab


def go_through(machine: Machine, names: Sequence[str], *, side_by_side: bool = False) -> bool:
    """Do the phases. False when there is more to do than there is time."""
    indices = machine.gpus()
    done = [machine.look()]
    if side_by_side and len(indices) > 1:
        return all([*done, *_two_lanes(machine, names, indices)])
    lab = machine.whole()
    return all([*done, *(_phase(lab, name) for name in names if name != "nccl" or len(indices) > 1)])


def _two_lanes(machine: Machine, names: Sequence[str], indices: Sequence[str]) -> list[bool]:
    """Two hosts with one GPU each at the same time, then one host with both."""
    makers = (
        lambda: machine.one_gpu(indices[0], "gpu-lab", ""),
        lambda: machine.one_gpu(indices[1], "gpu-lab-second", "second/"),
    )
    with ThreadPoolExecutor(3) as pool:
        lanes = zip(makers, phases.SIDE_BY_SIDE, strict=True)
        running = [pool.submit(_lane, make, [name for name in lane if name in names]) for make, lane in lanes]
        both = pool.submit(machine.whole, "gpu-lab-both")
        done = [lane.result() for lane in running]
    if "nccl" in names:
        lab = both.result()
        for other in machine.labs:
            if other is not lab:
                share_kernels(other, lab)
        done.append(_phase(lab, "nccl"))
    return done


def _phase(lab: Lab, name: str) -> bool:
    return lab.found.attempt(f"{lab.prefix}{name}", lambda: phases.PHASES[name](lab))


def _lane(make: Callable[[], Lab], names: Sequence[str]) -> bool:
    """The phases of one of two hosts; nothing of it runs afterwards."""
    lab = make()
    done = [_phase(lab, name) for name in names]
    if lab.host.engine_processes():
        lab.found.attempt(f"{lab.prefix}leave", lambda: lab.host.on_host("stop"))
    return all(done)


def share_kernels(source: Lab, target: Lab) -> None:
    """Let an engine on `target` find the kernels that one on `source` compiled: both keep them below their home."""
    for cache in source.host.box.layout.home.glob(".*"):
        link = target.host.box.layout.home / cache.name
        if not link.exists():
            link.symlink_to(cache)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="the whole product against the real engine on GPUs")
    parser.add_argument("--engine-python", type=Path, required=True, help="a Python that has SGLang")
    parser.add_argument("--work", type=Path, default=Path(".cache/engine-gpu"), help="host, models, logs, state")
    parser.add_argument("--out", type=Path, default=results.RESULTS, help="where the results are written")
    parser.add_argument("--budget-s", type=float, default=7200, help="begin nothing that would take longer than this")
    parser.add_argument("--phases", type=_phases, default=list(phases.PHASES), help=f"of {','.join(phases.PHASES)}")
    parser.add_argument(
        "--side-by-side", action="store_true", help="one host on each of two GPUs: shorter, and the speeds suffer"
    )
    parser.add_argument("--down", action="store_true", help="remove the host at the end")
    found = parser.parse_args(argv)
    found.work = found.work.resolve()
    # Not resolved: a virtual environment's Python is a link, and is one by its place.
    found.engine_python = found.engine_python.absolute()
    return found


def _phases(text: str) -> list[str]:
    names = text.split(",")
    unknown = set(names) - set(phases.PHASES)
    if unknown:
        raise argparse.ArgumentTypeError(f"no such phase: {', '.join(sorted(unknown))}")
    return names


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
