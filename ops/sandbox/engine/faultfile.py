"""Set, clear and list the faults of a simulation folder; the engine reads what is written here.

One file a fault, ``faults/<slot>.json``: {name, on, set_at, knobs, claimed_by}. ``on`` is "next" (the first candidate
release that starts afterwards), "current" (what runs now, and no later start) or the name of a profile or a
release (every start of it).
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .sglang.faults import PRESETS, check_knobs
from .sglang.knobs import read_fault, write_json


def set_fault(simulation: Path, fault: str | Mapping[str, Any], on: str = "next") -> Path:
    """Write a fault, by name or as knobs without a name, and return its file.

    Raises:
        KeyError: for an unknown name.
        ValueError: for an unknown knob.
    """
    if isinstance(fault, str):
        if fault not in PRESETS:
            raise KeyError(f"unknown fault {fault!r}; known: {', '.join(PRESETS)}")
        name, knobs = fault, {}
    else:
        check_knobs(fault)
        name, knobs = None, dict(fault)
    folder = simulation / "faults"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{time.time_ns()}-{name or 'knobs'}.json"
    write_json(file, {"name": name, "on": on, "set_at": time.time(), "knobs": knobs, "claimed_by": None})
    return file


def clear_faults(simulation: Path) -> list[dict[str, Any]]:
    """Remove all faults, put back what they changed on disk, and return what they were."""
    removed = list_faults(simulation)
    folder = simulation / "faults"
    for file in sorted(folder.glob("*.json")):
        file.unlink(missing_ok=True)
    for file in sorted((folder / "restore").glob("*.json")):
        kept = json.loads(file.read_text(encoding="utf-8"))
        target = Path(kept["path"])
        if target.parent.is_dir():
            target.write_text(kept["content"], encoding="utf-8")
        file.unlink()
    return removed


def list_faults(simulation: Path) -> list[dict[str, Any]]:
    """Return the faults in the order in which they were set, each with its file's name as ``slot``."""
    found: list[dict[str, Any]] = []
    for file in sorted((simulation / "faults").glob("*.json")):
        fault = read_fault(file)
        if fault is not None:
            found.append({**fault, "slot": file.stem})
    return found
