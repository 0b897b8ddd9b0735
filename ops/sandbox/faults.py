"""Faults of a sandbox: those of the host are done here, those of the engine are handed to the simulated engine.

Host faults strike at once, except `orphan-on-port`, which waits for the next candidate release to start.
"""

import difflib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.errors import ConfigError
from ops.sandbox import disk, orphan, processes
from ops.sandbox.daemons import detach
from ops.sandbox.environment import environment
from ops.sandbox.layout import MARKER, Daemon, Layout, write_file
from ops.sandbox.models import restore_models

if TYPE_CHECKING:
    from ops.sandbox.host import Sandbox

SSH_CUT_S = 5.0
REBOOT_DOWN_S = 1.0

HOST_FAULTS: Mapping[str, str] = {
    "orphan-on-port": "a process outside any release takes the engine's port before the next candidate binds it",
    "disk-full": "the root folder's file system is full to the last block (needs 'up --root-size-mib')",
    "ssh-cut": "every SSH connection is dropped, new ones are refused for a while",
    "reboot": "every process is killed at once; SSH server and supervisord come back as after a boot",
}


def known() -> dict[str, str]:
    """Every fault with one line of explanation."""
    from ops.sandbox.engine.sglang.faults import PRESETS

    return {**{name: preset.description for name, preset in PRESETS.items()}, **HOST_FAULTS}


def set_fault(
    sandbox: "Sandbox",
    name: str,
    on: str = "next",
    *,
    for_s: float | None = None,
    until: str | None = None,
    knobs: Mapping[str, Any] | None = None,
) -> None:
    """Set a fault by name, or a combination of the engine's knobs under a name of its own.

    on: "next" (the next candidate release), "current" (what runs now), or the name of a profile or a release; for the
        engine's faults.
    for_s: wall seconds; of an `ssh-cut` or of the time that a `reboot` is down. until: "rollback" (default) or
    "cleared": how long an `orphan-on-port` stays. Returns when the fault is set; `reboot` when the host is back.

    Raises: ConfigError for a name or option that does not exist; Refused when it cannot be done on this sandbox.
    """
    if name in HOST_FAULTS and knobs is None:
        _set_host_fault(sandbox, name, on, for_s, until)
        return
    if for_s is not None or until is not None:
        raise ConfigError(
            f"'{name}' is a fault of the engine: it has no duration and lasts until it is cleared",
            hint="ops sandbox fault --clear",
        )
    if knobs is None and name not in known():
        near = difflib.get_close_matches(name, known(), n=3)
        raise ConfigError(
            f"there is no fault '{name}'" + (f"; near: {', '.join(near)}" if near else ""),
            hint="all of them with one line each: ops sandbox fault --list",
        )
    from ops.sandbox.engine.faultfile import set_fault as set_engine_fault

    set_engine_fault(sandbox.layout.simulation, dict(knobs) if knobs is not None else name, on)


def _set_host_fault(sandbox: "Sandbox", name: str, on: str, for_s: float | None, until: str | None) -> None:
    if on != "next":
        raise ConfigError(
            f"'{name}' is a fault of the host, not of a release: --on {on} means nothing for it",
            hint=f"leave --on out: ops sandbox fault {name}",
        )
    if for_s is not None and name not in ("ssh-cut", "reboot"):
        raise ConfigError(f"'{name}' lasts until it is cleared, it takes no --for", hint="ops sandbox fault --clear")
    if until is not None and (name != "orphan-on-port" or until not in ("rollback", "cleared")):
        raise ConfigError(
            f"--until {until} means nothing for '{name}'",
            hint="ops sandbox fault orphan-on-port --until rollback|cleared",
        )
    if for_s is not None and not 0 < for_s <= 3600:
        raise ConfigError(f"--for {for_s:g} is not between 0 and 3600 wall seconds")
    actions: dict[str, Callable[[], object]] = {
        "orphan-on-port": lambda: start_orphan(sandbox, until or "rollback"),
        "disk-full": lambda: disk.fill(sandbox.layout),
        "ssh-cut": lambda: sandbox.cut_ssh(for_s or SSH_CUT_S),
        "reboot": lambda: sandbox.reboot(for_s or REBOOT_DOWN_S),
    }
    actions[name]()


def start_orphan(sandbox: "Sandbox", until: str) -> Daemon:
    """Start the process of `orphan-on-port`; one that is there already is replaced."""
    layout, record = sandbox.layout, sandbox.record
    _end_orphan(layout)
    file = _orphan_file(layout)
    settings = {
        "name": "orphan-on-port",
        "on": "next",
        "set_at": time.time(),
        "state": "waiting",
        "until": until,
        "address": record.address,
        "port": record.engine_port,
        "root": str(layout.root),
        "marker": f"{MARKER}={layout.folder}",
    }
    write_file(file, json.dumps(settings))
    argv = [str(layout.engine_python), "-I", str(orphan.__file__), str(file)]
    started = detach(argv, environment(layout), layout.log / "orphan.log", layout.home)
    write_file(_orphan_pid(layout), started.model_dump_json())
    return started


def _end_orphan(layout: Layout) -> None:
    if (process := _orphan(layout)) is not None:
        processes.kill(process)
        while processes.alive(process):
            time.sleep(0.001)
    _orphan_file(layout).unlink(missing_ok=True)
    _orphan_pid(layout).unlink(missing_ok=True)


def _orphan(layout: Layout) -> Daemon | None:
    try:
        return Daemon.model_validate_json(_orphan_pid(layout).read_text())
    except FileNotFoundError:
        return None


def _orphan_file(layout: Layout) -> Path:
    return layout.host_faults / "orphan-on-port.json"


def _orphan_pid(layout: Layout) -> Path:
    return layout.host_faults / "orphan-on-port.pid.json"


def clear_all(sandbox: "Sandbox") -> None:
    """Undo every fault, of the host and of the engine; the model folders are put back as `up` wrote them."""
    from ops.sandbox.engine.faultfile import clear_faults

    layout = sandbox.layout
    _end_orphan(layout)
    disk.free_up(layout)
    if sandbox.cut_left_s() > 0:
        sandbox.cut_ssh(0.0)
    clear_faults(layout.simulation)
    restore_models(layout)


def list_active(layout: Layout) -> list[dict[str, Any]]:
    """What is set now: {name, on, set_at, …}; an orphan's `state` is waiting, serving, left, missed or ended."""
    from ops.sandbox.engine.faultfile import list_faults

    active: list[dict[str, Any]] = [dict(fault) for fault in list_faults(layout.simulation)]
    if (file := _orphan_file(layout)).exists():
        seen = json.loads(file.read_text())
        wanted = ("name", "on", "set_at", "state", "until", "release", "struck_at", "left_at", "copied_at")
        entry = {key: seen[key] for key in wanted if key in seen}
        if entry["state"] in ("waiting", "serving") and not processes.alive(_orphan(layout)):
            entry["state"] = "ended"
        active.append(entry)
    if disk.filled(layout):
        active.append({"name": "disk-full", "on": "host", "set_at": layout.ballast.stat().st_mtime})
    if layout.cut.exists():
        cut = json.loads(layout.cut.read_text())
        active.append({"name": "ssh-cut", "on": "host", "until_epoch_s": cut.get("until")})
    return active
