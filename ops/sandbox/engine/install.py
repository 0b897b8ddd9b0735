"""Put the simulated engine into an environment, and write what its simulation folder says."""

import hashlib
import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FLAGS = HERE.parent.parent / "engine" / "flags" / "sglang-0.5.23.json"
HASH_FILE = ".content-hash"


@dataclass(frozen=True)
class Simulation:
    """``config.json`` of a simulation folder.

    ``noise`` is "off" or "story" (sd 4 tok/s at 94); ``load_s`` the virtual seconds of a whole load; ``gpus`` may set
    count, name, mib, topology ("pcie" or "nvlink"), driver, compute_cap, label (makes the uuids); ``knobs`` are
    engine knobs (see ``sglang/faults.py``) that always hold.
    """

    time_scale: float = 1.0
    noise: str = "off"
    seed: int = 0
    load_s: float = 8.0
    sd: float | None = None
    drift_per_run: float = 0.0
    autocorrelation: float = 0.0
    gpus: Mapping[str, Any] = field(default_factory=dict)
    knobs: Mapping[str, Any] = field(default_factory=dict)


def install_engine(site_packages: Path) -> None:
    """Copy the package ``sglang`` and its flag table into ``site_packages``; nothing is written when it is there."""
    sources = _sources()
    wanted = content_hash(sources)
    target = site_packages / "sglang"
    stamp = target / HASH_FILE
    if stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == wanted:
        return
    fresh = site_packages / f".sglang.{wanted[:12]}"
    shutil.rmtree(fresh, ignore_errors=True)
    for name, file in sources.items():
        (fresh / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, fresh / name)
    (fresh / HASH_FILE).write_text(f"{wanted}\n", encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)


def write_simulation(directory: Path, settings: Simulation) -> None:
    """Write ``config.json`` of the simulation folder ``directory``, making the folder when it is absent."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("faults", "gpu"):
        (directory / name).mkdir(exist_ok=True)
    temporary = directory / ".config.json.new"
    temporary.write_text(json.dumps(asdict(settings), indent=1) + "\n", encoding="utf-8")
    temporary.replace(directory / "config.json")


def install_nvidia_smi(bin_directory: Path, simulation: Path, python: Path) -> None:
    """Write ``bin_directory/nvidia-smi``, which answers for the GPUs of ``simulation``."""
    library = simulation / "lib"
    library.mkdir(parents=True, exist_ok=True)
    for name in ("gpu.py", "nvidia_smi.py"):
        shutil.copyfile(HERE / name, library / name)
    bin_directory.mkdir(parents=True, exist_ok=True)
    words = (str(python), "-I", "-S", "-B", str(library / "nvidia_smi.py"), str(simulation))
    command = " ".join(shlex.quote(word) for word in words)
    script = bin_directory / "nvidia-smi"
    fresh = script.with_name(".nvidia-smi.new")
    fresh.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    fresh.chmod(0o755)
    fresh.replace(script)


def content_hash(sources: Mapping[str, Path]) -> str:
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(name.encode() + b"\0" + sources[name].read_bytes() + b"\0")
    return digest.hexdigest()


def _sources() -> dict[str, Path]:
    package = HERE / "sglang"
    files = {str(f.relative_to(package)): f for f in package.rglob("*") if f.suffix in (".py", ".json", ".txt")}
    return {**files, "flags.json": FLAGS}
