"""Activate, start, stop, drain and admit one instance. Each verb looks first and may be repeated."""

import json
import os
import shutil
import signal
import time

from ops.remote import durable, machine, probe, processes, reserve, store, supervisors
from ops.remote.refusal import VerbError

_SYSTEM_NCCL_CONF = "/etc/nccl.conf"
_RELEASE_WAIT_S = 15.0  # memory and ports come back 1-2 s after the last process; wall seconds
_FADING_S = 4.0  # how long memory of a pid that is not there counts as fading, before it counts as a stranger's
_POLL_S = 0.05
_QUIET_S = 0.5
_QUIET_AFTER_TRAFFIC_S = 2.0
"""How long a drained engine must be without a request; wall seconds, as the senders' knowledge ages in them."""
_SILENT_LOOKS = 2  # an engine that is only slow to answer still has requests; a dead one refuses at once
_START_WAIT_S = 100.0
"""Until the supervisor has a process: a unit may wait for mounts, and its ExecStartPre has 90 s. Wall seconds."""


def activate(emit, *, instance_dir, release, supervisor):
    """Make the host's files those of `release`: `current`, the unit, /etc/nccl.conf. `release` None: nothing serves."""
    if release is None:
        store.swap(instance_dir, "current", None)
        _nccl_conf(instance_dir, None)
        _want(instance_dir, "stopped")
        return {}
    store.swap(instance_dir, "current", release)
    _nccl_conf(instance_dir, release)
    _want(instance_dir, "running")
    return {"supervisor": supervisors.get(supervisor).install(release)}


def _want(instance_dir, state):
    path = os.path.join(instance_dir, "guard", "wanted")
    if (durable.read_text(path) or "").strip() != state:
        reserve.write_urgent(instance_dir, path, state.encode() + b"\n")


def _nccl_conf(instance_dir, release):
    """Only ever replaces what ops wrote; the file that was there before comes back with a release that asks for none,
    and with none at all. `guard.sh` does the same.

    `ours` is written before our file and removed before the copy: cut off anywhere, a repetition still has the copy.
    """
    guard = os.path.join(instance_dir, "guard")
    ours, before = os.path.join(guard, "nccl.conf.ours"), os.path.join(guard, "nccl.conf.before")
    wanted = os.path.join(instance_dir, "releases", release, "nccl.conf") if release else None
    if wanted and os.path.exists(wanted):
        if not os.path.exists(ours):
            _copy(_SYSTEM_NCCL_CONF, before)
            durable.write_atomic(ours, b"")
        _copy(wanted, _SYSTEM_NCCL_CONF)
    elif os.path.exists(ours):
        _copy(before, _SYSTEM_NCCL_CONF)
        os.unlink(ours)
        if os.path.exists(before):
            os.unlink(before)


def _copy(source, target):
    """Make `target` what `source` is: absent too."""
    if os.path.exists(source):
        with open(source, "rb") as file:
            durable.write_atomic(target, file.read())
    elif os.path.exists(target):
        os.unlink(target)


def start(emit, *, instance_dir, supervisor):
    """Ask the supervisor for the engine; returns {pid, starttime, log, log_offset, asked_at}. Running already: the same
    answer."""
    keeper = supervisors.get(supervisor)
    release = store.links(instance_dir)["current"]
    log = os.path.join(instance_dir, "logs", f"{release}.log")
    state = keeper.state()
    if state["state"] in ("running", "starting") and state["pid"]:
        return _started(state["pid"], log, last_start_offset(log))
    offset = os.path.getsize(log) if os.path.exists(log) else 0
    durable.write_atomic(os.path.join(instance_dir, "guard", "ordered"), b"")
    _want(instance_dir, "running")
    keeper.start()
    deadline = time.monotonic() + _START_WAIT_S
    while time.monotonic() < deadline:
        state = keeper.state()
        if state["pid"]:
            return _started(state["pid"], log, offset)
        if state["state"] == "failed":
            break
        time.sleep(_POLL_S)
    raise VerbError(f"the supervisor did not start the engine: {state['detail']}", code="engine-not-started")


def _started(pid, log, offset):
    facts = processes.stat(pid)
    return {
        "pid": pid,
        "starttime": facts["starttime"] if facts else None,
        "log": log,
        "log_offset": offset,
        "asked_at": time.time(),
    }


def last_start_offset(log):
    """Where the log of the latest start begins: the last header line that launch.sh wrote."""
    header = b"== ops start "
    try:
        with open(log, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            base = max(0, size - (4 << 20))
            file.seek(base)
            content = file.read()
    except FileNotFoundError:
        return 0
    found = content.rfind(header)
    return base + found if found >= 0 else 0


def stop(emit, *, instance_dir, supervisor, endpoints, deadline_s, want_stopped=False):
    """Stop everything of this instance and prove it.

    SIGTERM through the supervisor, its deadline, SIGKILL of what is left (only processes that carry the instance's
    marker), then wait until `endpoints` ([address, port]) are free and no process of ours holds GPU memory. Returns
    {stopped, killed: [pids], foreign: [GPU holders that are not ours], seconds (wall)}. Raises VerbError naming the
    holder when something stays.
    """
    begun = time.monotonic()
    if want_stopped:
        _want(instance_dir, "stopped")
    before = {p["pid"]: p for p in processes.ours(instance_dir)}
    emit({"say": f"stopping {len(before)} processes"})
    supervisors.get(supervisor).stop(deadline_s)
    killed = _kill_rest(instance_dir, before)
    deadline = time.monotonic() + _RELEASE_WAIT_S
    fading_until = time.monotonic() + _FADING_S
    while True:
        held_ports = processes.listening_on(endpoints)
        found = machine.gpu_holders()
        unknown = found is None and shutil.which("nvidia-smi") is not None
        holders = found or []
        # A crashed engine's memory is still on its way back although nobody of it lives.
        fading = time.monotonic() < fading_until
        left = [h for h in holders if h["pid"] in before or (fading and not processes.alive(h["pid"]))]
        if not held_ports and not left and not unknown:
            break
        if time.monotonic() > deadline:
            if unknown and not held_ports:
                raise VerbError(
                    "stopped, but nvidia-smi does not answer: nobody knows whether GPU memory is back",
                    code="gpu-unknown",
                )
            raise VerbError(_still_held(held_ports, left), code="still-held", listeners=held_ports, holders=left)
        time.sleep(0.2)
    foreign = [{**h, "user": processes.user(h["pid"])} for h in holders]
    return {
        "stopped": sorted(before),
        "killed": killed,
        "foreign": foreign,
        "seconds": round(time.monotonic() - begun, 3),
    }


def _kill_rest(instance_dir, before):
    killed: list[int] = []
    for _ in range(100):
        rest = processes.ours(instance_dir)
        known = {p["pid"] for p in rest}
        rest += [p for pid, p in before.items() if pid not in known and processes.alive(pid, p["starttime"])]
        if not rest:
            return killed
        for process in rest:
            if processes.alive(process["pid"], process["starttime"]):
                try:
                    os.kill(process["pid"], signal.SIGKILL)
                except ProcessLookupError:
                    continue
                killed.append(process["pid"])
        time.sleep(_POLL_S)
    raise VerbError(
        "processes of this instance survive SIGKILL: " + ", ".join(f"{p['pid']} {p['title']}" for p in rest),
        code="survives-kill",
    )


def _still_held(listeners, holders):
    parts = [f"port {e['port']} is held by pid {e['pid']} ({e['user']}: {e['title']})" for e in listeners]
    parts += [
        f"{h['used_mib']} MiB of GPU {h['gpu_uuid']} are held by pid {h['pid']} ({h['process_name']})" for h in holders
    ]
    return "stopped, but " + "; ".join(parts)


def drain(emit, *, instance_dir, port, address, api_key, deadline_s):
    """Mark the instance as taking no traffic and wait until the engine stays without a running request.

    One look without a request is not enough: whoever sends learns a moment later that it should not, and its requests
    of that moment must not be cut. So the engine has to be quiet for a while, longer where there was traffic.

    Returns {running: int|None (None: the engine does not answer, so there is nothing to wait for), seconds (wall)}.
    """
    hold(emit, instance_dir=instance_dir)
    begun = quiet_since = time.monotonic()
    quiet_s, said, silent = _QUIET_S, None, 0
    while True:
        running = probe.running_requests(address, port, api_key)
        now = time.monotonic()
        silent = silent + 1 if running is None else 0
        if silent > _SILENT_LOOKS or now - begun > deadline_s:
            return {"running": running, "seconds": round(now - begun, 3)}
        if running == 0 and now - quiet_since >= quiet_s:
            return {"running": 0, "seconds": round(now - begun, 3)}
        if running:
            quiet_since, quiet_s = now, _QUIET_AFTER_TRAFFIC_S
            if said is None or now - said >= 1.0:
                emit({"say": f"waiting for {running} running requests"})
                said = now
        time.sleep(_POLL_S)


def hold(emit, *, instance_dir):
    """No traffic for this instance."""
    path = os.path.join(instance_dir, "admitted")
    if os.path.exists(path):
        os.unlink(path)
        durable.fsync_dir(instance_dir)
    return {}


def admit(emit, *, instance_dir, release):
    """Traffic for `release`."""
    document = {"release": release, "since": round(time.time(), 3)}
    reserve.write_urgent(instance_dir, os.path.join(instance_dir, "admitted"), json.dumps(document).encode())
    return document
