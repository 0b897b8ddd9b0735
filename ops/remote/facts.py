"""One read-only pass over a host: everything that status, preflight, planning and the gate need to know of it."""

import json
import os
import platform
import pwd
import socket
import sys
import time

from ops.remote import (
    containers,
    durable,
    guard,
    journal,
    keys,
    lifecycle,
    lock,
    machine,
    probe,
    processes,
    stack,
    store,
    supervisors,
)
from ops.remote import models as model_folders

_RANK_TITLE = "sglang::scheduler"
_TIMER = "sglang:forward_execution_seconds_total"  # see ops.engine.phase_timer


def observe(
    emit, *, instance_dir, supervisor, ports=(), models=None, engine=None, gpus=False, log_lines=0, software=None
):
    """Look at the host.

    Args: ports: whose listeners to name. models: {target|draft: {folder, weights: digest
    them too}}. engine: {bind
    (or None: the profile's own address)} to ask the current release's engine for its health, arguments and
    load. gpus: ask nvidia-smi as well (it is slow on real hosts). software: {role: what a manifest names} to look for
    beside that of the releases which a link names.
    """
    links = store.links(instance_dir)
    manifests = {r: _manifest(instance_dir, r) for r in set(links.values()) if r}
    serving = ((manifests.get(links["current"]) or {}).get("profile") or {}).get("engine")
    ports = {*ports, *([serving["port"]] if serving else [])}
    keeper, state, boot_id, problem = _supervisor(supervisor)
    # Before the processes: whoever holds memory by then is among them, or gone.
    seen_gpus = machine.gpus() if gpus else None
    found = {
        "time": time.time(),
        "hostname": socket.gethostname(),
        "user": processes.user(os.getpid()),
        "uid": os.getuid(),
        "python": sys.version.split()[0],
        "kernel": platform.release(),
        "boot_id": boot_id,
        "supervisor": keeper,
        "supervisor_problem": problem,
        "links": links,
        "manifests": manifests,
        "releases": store.releases(instance_dir),
        "lock": lock.read(instance_dir),
        "guard": guard.state(instance_dir),
        "journal": journal.tail(instance_dir),
        "admitted": _json(os.path.join(instance_dir, "admitted")),
        "engine": state,
        "processes": (own := processes.ours(instance_dir)),
        "listeners": processes.listeners(ports) if ports else [],
        "disk": machine.disk(instance_dir),
        "shm": machine.disk("/dev/shm"),
        "limits": machine.limits(),
        "nccl_files": machine.nccl_files(homes(own)),
        "gpus": seen_gpus,
        "models": {
            role: model_folders.describe(instance_dir, **wanted, say=lambda text: emit({"say": text}))
            for role, wanted in (models or {}).items()
        },
    }
    pid = state["pid"]  # its processes are found by their environment, so without it nobody knows which are there
    found["unseen"] = pid is not None and all(p["pid"] != pid for p in own) and processes.unseen(pid)
    if software is not None:
        found["stack"] = stack.look(instance_dir, supervisor["instance"], {**_software(links, manifests), **software})
    if gpus:
        found |= _for_preflight(instance_dir, keeper, state)
    if engine is not None and serving and state["pid"]:
        key = keys.reference(instance_dir, "api-key")
        found["http"] = _http(engine["bind"] or serving["host"], serving["port"], key)
    if log_lines:
        found["log"] = log(instance_dir, links["current"], log_lines)
    return found


def _software(links, manifests):
    """{link: what its release runs on}."""
    named = {link: (manifests.get(release) or {}).get("software") for link, release in links.items() if release}
    return {link: software for link, software in named.items() if software}


def _for_preflight(instance_dir, keeper, state):
    """What only matters before something is changed."""
    return {
        "gpu_problem": machine.gpu_problem(),
        "xids": machine.xids(),
        "zombies": processes.zombies(),
        "reload": containers.reload_danger(instance_dir) if keeper == "systemd" else None,
        "unit_loaded": state["state"] != "absent",
        "unit_stale": state.get("stale", False),
        "login_files": machine.login_files(os.path.expanduser("~")),  # HOME is still that of the login
        "users": sorted(entry.pw_name for entry in pwd.getpwall()),
    }


def homes(own):
    """Home folders of the users that the engine's processes (else this agent) run as, as NCCL finds them."""
    found = []
    for user in {entry["user"] for entry in own} or {processes.user(os.getpid())}:
        try:
            found.append(pwd.getpwnam(user).pw_dir)
        except KeyError:
            continue
    return sorted(found)


def _supervisor(description):
    kind = description.get("kind") or supervisors.detect()
    try:
        keeper = supervisors.get(description)
        return kind, keeper.state(), keeper.boot_id(), ""
    except Exception as error:  # a host without its supervisor is a finding for preflight, not an error of looking
        nothing = {"state": "absent", "pid": None, "started_at": None, "enabled": False, "detail": str(error)}
        return kind, nothing, None, str(error)


def _manifest(instance_dir, release):
    return _json(os.path.join(instance_dir, "releases", release, "manifest.json"))


def _json(path):
    text = durable.read_text(path)
    return None if text is None else json.loads(text)


def _http(address, port, api_key=None):
    """What a running engine says of itself; its /health is not asked where it has /ready: that costs a generation."""
    ready = probe.ready(address, port, api_key)
    status, info = probe.get(address, port, "/server_info", api_key)
    loads_status, loads = probe.get(address, port, "/v1/loads", api_key)
    metrics_status, metrics = probe.get(address, port, "/metrics", api_key)
    timer = [line for line in metrics.splitlines() if line.startswith(_TIMER)] if metrics_status == 200 else []
    return {
        "timer": timer,
        "ready": ready,
        "server_info": info if status == 200 else None,
        "server_info_status": status,
        "loads": loads["loads"] if loads_status == 200 and isinstance(loads, dict) else None,
    }


def log(instance_dir, release, lines):
    """The last lines that the engine wrote since its latest start."""
    if release is None:
        return []
    path = os.path.join(instance_dir, "logs", f"{release}.log")
    begin = lifecycle.last_start_offset(path)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(begin, size - 400 * lines))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []
