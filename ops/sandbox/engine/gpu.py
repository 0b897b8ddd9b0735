"""Who holds how much of which simulated GPU: ``<simulation>/gpu/<index>/<pid>.json``, one file a process.

An entry counts while the process with that pid and start time lives, and for about a second after a reader first saw
it dead, because real memory returns 1-2 s late. Standard library only and no other module: the stub ``nvidia-smi``
carries a copy of this file.
"""

import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FREED_AFTER_S = 1.0
DEFAULTS: dict[str, Any] = {
    "count": 8,
    "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "mib": 97887,
    "compute_cap": "12.0",
    "driver": "580.82.07",
    "cuda": "13.0",
    "topology": "pcie",
    "label": "sandbox",
    "utilization": 0,
    "power": 82.4,
    "temperature": 31,
}


@dataclass(frozen=True)
class Holder:
    pid: int
    mib: int
    process_name: str
    user: str


@dataclass(frozen=True)
class Gpu:
    index: int
    uuid: str
    name: str
    total_mib: int
    bus_id: str
    holders: list[Holder] = field(default_factory=list)

    @property
    def used_mib(self) -> int:
        return min(self.total_mib, 4 + sum(holder.mib for holder in self.holders))


def gpu_settings(simulation: Path) -> dict[str, Any]:
    """Return the ``gpus`` part of config.json over the defaults.

    Raises:
        ValueError: for an unknown key.
    """
    try:
        config = json.loads((simulation / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        config = {}
    given = config.get("gpus") or {}
    unknown = sorted(set(given) - set(DEFAULTS))
    if unknown:
        raise ValueError(f"{simulation / 'config.json'}: unknown gpus keys {unknown}")
    return {**DEFAULTS, **given}


def read_gpus(simulation: Path) -> list[Gpu]:
    """Return all GPUs with the processes that hold memory on them."""
    settings = gpu_settings(simulation)
    return [
        Gpu(
            index=index,
            uuid=gpu_uuid(str(settings["label"]), index),
            name=str(settings["name"]),
            total_mib=int(settings["mib"]),
            bus_id=f"00000000:{0x01 + 0x10 * index:02X}:00.0",
            holders=_holders(simulation / "gpu" / str(index)),
        )
        for index in range(int(settings["count"]))
    ]


def gpu_uuid(label: str, index: int) -> str:
    digest = hashlib.sha256(f"{label}:{index}".encode()).hexdigest()
    return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def hold_gpu(simulation: Path, index: int, pid: int, mib: int, process_name: str, user: str) -> None:
    """Let the living process ``pid`` hold memory: for processes that are no ranks, such as another user's job.

    Raises:
        ProcessLookupError: when there is no such process.
    """
    started = start_time(pid)
    if started is None:
        raise ProcessLookupError(f"no process {pid} to hold memory on GPU {index}")
    folder = simulation / "gpu" / str(index)
    folder.mkdir(parents=True, exist_ok=True)
    entry = {"pid": pid, "starttime": started, "mib": mib, "process_name": process_name, "user": user}
    temporary = folder / f"{pid}.json.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(entry), encoding="utf-8")
    temporary.replace(folder / f"{pid}.json")


def start_time(pid: int) -> int | None:
    """Return the start time of a living process in clock ticks since boot; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _holders(folder: Path) -> list[Holder]:
    holders: list[Holder] = []
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            entry = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        if start_time(entry["pid"]) == entry["starttime"] or _still_held(file):
            holders.append(Holder(entry["pid"], entry["mib"], entry["process_name"], entry["user"]))
    return holders


def _still_held(file: Path) -> bool:
    """Say whether the memory of a dead process is not back yet; the first reader starts the clock."""
    marker = file.with_suffix(".dead")
    try:
        seen = marker.stat().st_mtime
    except FileNotFoundError:
        try:
            marker.touch()
        except PermissionError:
            # Somebody else's folder: nobody can start the clock here, so the memory counts as back.
            return False
        return True
    if time.time() - seen < FREED_AFTER_S:
        return True
    for leftover in (file, marker):
        try:
            leftover.unlink()
        except (FileNotFoundError, PermissionError):
            continue
    return False
