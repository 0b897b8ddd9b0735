"""Which faults strike this process: read from ``simulation/faults``, claimed at start, followed while running.

A fault set ``on: current`` strikes the processes that ran when it was set, and no later start.
A fault set ``on: next`` strikes the first candidate release that starts after it was set, and later starts of that
release; the claim is written into the fault's file. A rollback, a baseline measurement and a guard never claim.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .faults import check_knobs, knobs_of

CLAIMING_COMMANDS = ("deploy", "start", "restart")
# A start without a release id (by hand) claims under this name.
BY_HAND = "started-by-hand"


class Knobs:
    """The knobs in force: those of ``config.json``, under those of the faults that strike this process.

    ``refresh`` looks at the folder's time stamp first, so it can be called for each request.
    """

    def __init__(
        self, folder: Path, base: Mapping[str, Any], environment: Mapping[str, str], started_at: float
    ) -> None:
        check_knobs(base)
        self._folder = folder / "faults"
        self._base = dict(base)
        self._started_at = started_at
        self._release = environment.get("OPS_RELEASE", "")
        self._stamp: tuple[int, ...] = ()
        self._values: dict[str, Any] = dict(self._base)
        self.names: tuple[str, ...] = ()

    def __getitem__(self, knob: str) -> Any:
        return self._values.get(knob)

    def number(self, knob: str, default: float) -> float:
        value = self._values.get(knob)
        return default if value is None else float(value)

    def refresh(self) -> None:
        """Read the faults again when a file was added, changed or removed."""
        files = sorted(self._folder.glob("*.json")) if self._folder.is_dir() else []
        stamp = tuple(part for file in files for part in _stamp(file))
        if stamp == self._stamp:
            return
        self._stamp = stamp
        values = dict(self._base)
        names: list[str] = []
        for file in files:
            fault = read_fault(file)
            if fault is not None and self._strikes(fault):
                values.update(fault_knobs(fault))
                names.append(str(fault.get("name") or file.stem))
        self._values, self.names = values, tuple(names)

    def _strikes(self, fault: Mapping[str, Any]) -> bool:
        on = fault.get("on", "next")
        if on == "current":
            return float(fault.get("set_at", 0.0)) >= self._started_at
        if on == "next":
            return fault.get("claimed_by") == (self._release or BY_HAND)
        return on in (self._release, self._release.rpartition("-")[0])


def claim(folder: Path, environment: Mapping[str, str], started_at: float) -> None:
    """Claim the unclaimed ``next`` faults in ``folder`` when this process is the candidate of a deploy."""
    release = environment.get("OPS_RELEASE", "")
    instance = environment.get("OPS_INSTANCE_DIR")
    if instance and not _is_candidate(Path(instance) / "journal.jsonl", release):
        return
    for file in sorted((folder / "faults").glob("*.json")):
        fault = read_fault(file)
        if fault is None or fault.get("on") != "next" or fault.get("claimed_by"):
            continue
        if float(fault.get("set_at", 0.0)) <= started_at:
            write_json(file, {**fault, "claimed_by": release or BY_HAND})


def read_fault(file: Path) -> dict[str, Any] | None:
    """Return the fault in ``file``; None when it was cleared in the same moment."""
    try:
        loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return loaded


def fault_knobs(fault: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fault's knobs: the preset of its name, changed by its own."""
    named = knobs_of(str(fault["name"])) if fault.get("name") else {}
    merged = {**named, **(fault.get("knobs") or {})}
    check_knobs(merged)
    return merged


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}.{time.monotonic_ns()}")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(file)


def shift_draft_layer_ids(folder: Path, draft_path: str, shift: int) -> None:
    """Change the layer ids in the draft's configuration, keeping the original for whoever clears the fault."""
    file = Path(draft_path) / "config.json"
    original = file.read_text(encoding="utf-8")
    config = json.loads(original)
    eagle = config.get("eagle_config")
    ids = eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, dict) else None
    kept = folder / "faults" / "restore"
    if not ids or (kept / f"{_slug(file)}.json").exists():
        return
    kept.mkdir(parents=True, exist_ok=True)
    write_json(kept / f"{_slug(file)}.json", {"path": str(file), "content": original})
    eagle["eagle_aux_hidden_state_layer_ids"] = [i + shift for i in ids]
    write_json(file, config)


def _slug(file: Path) -> str:
    return "".join(c if c.isalnum() else "_" for c in str(file))


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        status = file.stat()
    except FileNotFoundError:
        return (0,)
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def _is_candidate(journal: Path, release: str) -> bool:
    """Say whether the last run in ``journal`` starts ``release`` as a candidate; no journal counts as yes."""
    try:
        lines = journal.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return True
    for line in reversed(lines):
        if '"run-started"' not in line:
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event.get("event") == "run-started":
            return (
                event.get("command") in CLAIMING_COMMANDS
                and event.get("purpose") == "candidate"
                and event.get("release") == release
            )
    return True
