"""The client's half of the dead-man protocol; `guard.sh` is the host's half.

Invariant: `armed` leaves the folder only by a rename, and whoever wins that rename (client: `confirmed`,
`armed.client`; guard: `fired`) decides what becomes of the pending release.
"""

import base64
import json
import os
import time

from ops.remote import durable, journal, lock, reserve, store, supervisors
from ops.remote.refusal import VerbError

MARKERS = ("armed", "armed.client", "fired", "confirmed", "wanted", "started")


def _path(instance_dir, name):
    return os.path.join(instance_dir, "guard", name)


def read_marker(instance_dir, name):
    """A marker's KEY=VALUE lines as a dict, or None when it is not there."""
    text = durable.read_text(_path(instance_dir, name))
    if text is None:
        return None
    return dict(line.split("=", 1) for line in text.split("\n") if "=" in line)


def state(instance_dir):
    """{marker: its values or None}; `wanted` is running, stopped or None."""
    found = {name: read_marker(instance_dir, name) for name in MARKERS}
    wanted = durable.read_text(_path(instance_dir, "wanted"))
    found["wanted"] = wanted.strip() if wanted else None
    return found


def install(emit, *, instance_dir, files, supervisor):
    """Write guard.sh, guard.conf and the supervisor's part where they differ. `files`: as for `store.stage`."""
    store.prepare(emit, instance_dir=instance_dir)
    changed = []
    for file in files:
        path = _path(instance_dir, file["name"])
        if not (os.path.isfile(path) and durable.sha256(path) == file["sha256"]):
            durable.write_atomic(path, base64.b64decode(file["content"]), file["mode"])
            changed.append(file["name"])
    wanted = {file["name"]: {"sha256": file["sha256"], "mode": f"{file['mode']:04o}"} for file in files}
    durable.write_atomic(_path(instance_dir, "files.json"), json.dumps(wanted, indent=1).encode())
    found = supervisors.get(supervisor).install_guard(changed)
    return {"changed": changed, "supervisor": found}


def installed(instance_dir):
    """The guard's files as they were last installed: {name: {sha256, mode}}; None: nobody wrote that down."""
    text = durable.read_text(_path(instance_dir, "files.json"))
    return None if text is None else json.loads(text)


def arm(emit, *, instance_dir, run, release, baseline, deadline_s, supervisor):
    """From now the host goes back by itself unless `confirm` comes within `deadline_s` (wall seconds). `baseline`: what
    is confirmed then is a baseline: one that fails must not become a way back."""
    if os.path.exists(_path(instance_dir, "fired")):
        raise VerbError(
            "the guard is going back from an earlier release right now; try again in a minute", code="guard-busy"
        )
    durable.write_atomic(_path(instance_dir, "armed"), _armed_text(run, release, baseline, deadline_s, supervisor))
    supervisors.get(supervisor).arm(deadline_s)
    store.swap(instance_dir, "pending", release)
    return {}


def rearm(emit, *, instance_dir, run, release, baseline, deadline_s, supervisor):
    """Move the deadline and the pending release for the way back; refuses when the guard was faster.

    The marker is replaced in one step, so the host is armed at every moment. A guard that took the old marker in that
    moment is seen afterwards: then the new one goes, and the guard goes on.
    """
    gone = not any(os.path.exists(_path(instance_dir, name)) for name in ("armed", "armed.client"))
    if os.path.exists(_path(instance_dir, "fired")) or (gone and not _owns(instance_dir, run)):
        raise VerbError("the guard is undoing this run", code="undoing")
    _same_boot(instance_dir, run, supervisor)
    text = _armed_text(run, release, baseline, deadline_s, supervisor)
    reserve.write_urgent(instance_dir, _path(instance_dir, "armed"), text)
    if os.path.exists(_path(instance_dir, "fired")):
        _unlink(_path(instance_dir, "armed"))
        raise VerbError("the guard is undoing this run", code="undoing")
    _unlink(_path(instance_dir, "armed.client"))
    supervisors.get(supervisor).arm(deadline_s)
    store.swap(instance_dir, "pending", release)
    return {}


def _same_boot(instance_dir, run, supervisor):
    """A boot undoes a pending release; its client must not act on the host in the moments before the guard does."""
    if booted_since(instance_dir, run, supervisor):
        raise VerbError("the guard is undoing this run: the host rebooted", code="rebooted")


def booted_since(instance_dir, run, supervisor):
    """Whether the host booted since `run` armed it."""
    armed = read_marker(instance_dir, "armed") or {}
    return armed.get("RUN") == run and armed["BOOT"] != supervisors.get(supervisor).boot_id()


def _owns(instance_dir, run):
    holder = lock.read(instance_dir)
    return holder is not None and holder["run"] == run


def _unlink(path):
    if os.path.exists(path):
        os.unlink(path)


def _armed_text(run, release, baseline, deadline_s, supervisor):
    keeper = supervisors.get(supervisor)
    deadline = int(time.time() + deadline_s) + 1
    becomes = "yes" if baseline else "no"
    return f"RUN={run}\nRELEASE={release}\nDEADLINE={deadline}\nBOOT={keeper.boot_id()}\nBASELINE={becomes}\n".encode()


def _claim(instance_dir, name):
    try:
        os.rename(_path(instance_dir, "armed"), _path(instance_dir, name))
    except FileNotFoundError:
        if not os.path.exists(_path(instance_dir, name)):
            raise VerbError("the guard is undoing this run", code="undoing") from None
    durable.fsync_dir(os.path.dirname(_path(instance_dir, name)))


def confirm(emit, *, instance_dir, run, supervisor):
    """The commit point: win the rename of `armed`, then make the pending release the last good one."""
    armed = read_marker(instance_dir, "armed") or read_marker(instance_dir, "confirmed")
    if armed is None:
        # Asked again after a lost connection: committed then, or the guard finished it at a boot.
        links = store.links(instance_dir)
        done = ("committed", "confirmed-late")
        ours = [e.get("event") for e in journal.tail(instance_dir) if e.get("run") == run]
        if links["pending"] is None and ours and any(kind in done for kind in ours):
            return {"release": links["last-good"]}
        raise VerbError("the guard has undone this run", code="undone")
    if armed["RUN"] != run:
        raise VerbError(f"the host is armed for another run ({armed['RUN']})", code="armed-for-another")
    _same_boot(instance_dir, run, supervisor)
    _claim(instance_dir, "confirmed")
    release = armed["RELEASE"]
    journal.write(instance_dir, {"run": run, "event": "committed", "release": release})
    finish(emit, instance_dir=instance_dir)
    supervisors.get(supervisor).disarm()
    return {"release": release}


def finish(emit, *, instance_dir):
    """Do what follows the commit point; harmless when there is nothing to do."""
    confirmed = read_marker(instance_dir, "confirmed")
    if confirmed is not None:
        store.swap(instance_dir, "last-good", confirmed["RELEASE"])
        if confirmed.get("BASELINE") == "yes":
            store.swap(instance_dir, "baseline", confirmed["RELEASE"])
        store.swap(instance_dir, "pending", None)
        os.unlink(_path(instance_dir, "confirmed"))
    return {}


def disarm(emit, *, instance_dir, supervisor):
    """Give up a pending release that never replaced anything."""
    if read_marker(instance_dir, "armed") is not None:
        _claim(instance_dir, "armed.client")
    if os.path.exists(_path(instance_dir, "fired")):
        raise VerbError("the guard is undoing this run", code="undoing")
    store.swap(instance_dir, "pending", None)
    _unlink(_path(instance_dir, "armed.client"))
    supervisors.get(supervisor).disarm()
    return {}
