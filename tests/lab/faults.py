"""Faults of the simulated engine on a lab host, as `ops sandbox fault` sets them on a sandbox."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ops.sandbox.engine.faultfile import set_fault

from .login import Login
from .payload import SIMULATION


def fault(login: Login, what: str | Mapping[str, Any], on: str = "next") -> None:
    """Set a fault by its name or as knobs on the host that `login` reaches. It ends with the host.

    Args: on: "next", "current" or a profile's name.
    Raises: KeyError or ValueError for an unknown fault or knob; CommandFailed when the host does not take it.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = set_fault(Path(folder), what, on)
        path = f"{SIMULATION}/faults/{file.name}"
        # The engine, whoever it runs as, writes into it which release claimed it.
        take = f"cat >{path}.new && chmod 0666 {path}.new && mv {path}.new {path}"
        login.run("sudo", "sh", "-c", take, stdin=file.read_bytes())
