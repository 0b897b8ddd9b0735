"""The simulation folder as the engine sees it: ``<prefix>/simulation`` of the virtual environment it runs in.

``config.json`` holds what a person chose; ``run-counter`` the number of the next run, advanced under a file lock.
"""

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

RUNS_PER_START = 100_000


@dataclass(frozen=True)
class Settings:
    """What ``config.json`` may say; an absent file means these defaults.

    ``load_s`` is the length of a whole load in virtual seconds; ``sd`` the relative spread of runs when noise is on.
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

    @property
    def topology(self) -> str:
        return str(self.gpus.get("topology", "pcie"))

    @property
    def gpu_mib(self) -> int:
        return int(self.gpus.get("mib", 97887))


def simulation_folder() -> Path:
    return Path(sys.prefix) / "simulation"


def read_settings(folder: Path) -> Settings:
    """Return the settings in ``folder``.

    Raises:
        ValueError: for an unknown key or a time scale that is not positive: a simulation that silently ignores what
            it was asked for would prove nothing.
    """
    try:
        raw: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Settings()
    unknown = set(raw) - {f.name for f in fields(Settings)}
    if unknown:
        raise ValueError(f"{folder / 'config.json'}: unknown keys {sorted(unknown)}")
    settings = Settings(**raw)
    if settings.time_scale <= 0 or settings.noise not in ("off", "story"):
        raise ValueError(f"{folder / 'config.json'}: time_scale must be > 0 and noise 'off' or 'story'")
    return settings


def next_start(folder: Path) -> int:
    """Return this start's number and advance the counter; two starts at once get two numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "run-counter", os.O_RDWR | os.O_CREAT, 0o644)
    with contextlib.closing(os.fdopen(descriptor, "r+")) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = file.read().strip()
        number = int(text) if text else 1
        file.seek(0)
        file.truncate()
        file.write(f"{number + 1}\n")
    return number
