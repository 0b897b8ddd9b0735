"""One writer a host: a file that names its owner, created by hard link, removed only by who owns it.

Its modification time is the heartbeat. What a dead owner means is decided by the client (see `ops.flows.ownership`).
"""

import fcntl
import json
import os
import time
from contextlib import contextmanager

from ops.remote import reserve, versions
from ops.remote.refusal import VerbError


def path_of(instance_dir):
    return os.path.join(instance_dir, "lock")


def read(instance_dir):
    """The owner's document with `heartbeat_age_s`, or None when the host is free."""
    path = path_of(instance_dir)
    try:
        with open(path, encoding="utf-8") as file:
            owner = versions.parsed(path, file.read())
            owner["heartbeat_age_s"] = max(0.0, time.time() - os.fstat(file.fileno()).st_mtime)
            return owner
    except (FileNotFoundError, NotADirectoryError):
        return None


def acquire(emit, *, instance_dir, owner):
    """Take the lock for `owner` ({owner, host, pid, run, since, message}).

    Returns {"acquired": bool, "holder": document}; the run that holds it already gets True again.
    """
    path = path_of(instance_dir)
    temporary = _written(instance_dir, owner)
    try:
        while True:
            try:
                os.link(temporary, path)
                return {"acquired": True, "holder": owner}
            except FileExistsError:
                holder = read(instance_dir)
            if holder is not None:  # else it was given back in this moment
                return {"acquired": holder["run"] == owner["run"], "holder": holder}
    finally:
        os.unlink(temporary)


def _written(instance_dir, owner):
    """The owner's document under a name of its own, ready to become the lock."""
    os.makedirs(instance_dir, exist_ok=True)
    temporary = f"{path_of(instance_dir)}.{owner['run']}"
    reserve.write_urgent(instance_dir, temporary, json.dumps(versions.stamped(owner)).encode())
    return temporary


@contextmanager
def _changing(instance_dir):
    """Whoever replaces or removes the lock of a run does it alone: between look and act nobody else does.

    `guard.sh` takes the same mutex.
    """
    mutex = reserve.spend(instance_dir, lambda: os.open(path_of(instance_dir) + ".mutex", os.O_WRONLY | os.O_CREAT))
    try:
        fcntl.flock(mutex, fcntl.LOCK_EX)
        yield
    finally:
        os.close(mutex)


def take_over(emit, *, instance_dir, dead_run, owner):
    """Replace the lock of a run that is over, if it still is that run's, without a moment in which the host is free.

    Returns as `acquire`.
    """
    with _changing(instance_dir):
        holder = read(instance_dir)
        if holder is None or holder["run"] != dead_run:
            return acquire(emit, instance_dir=instance_dir, owner=owner)
        os.rename(_written(instance_dir, owner), path_of(instance_dir))
        return {"acquired": True, "holder": owner}


def require(instance_dir, run):
    """Refuse when `run` does not own the host (the guard undid it, or another client took over)."""
    holder = read(instance_dir)
    if holder is None or holder["run"] != run:
        raise VerbError("this run no longer owns the host", code="not-owner", holder=holder)


def heartbeat(emit, *, instance_dir, run):
    """Say that `run` lives; refuses when another owns the lock."""
    require(instance_dir, run)
    os.utime(path_of(instance_dir))
    return {}


def release(emit, *, instance_dir, run):
    """Compare and delete; returns {"released": bool}."""
    if read(instance_dir) is None:
        return {"released": False}
    with _changing(instance_dir):
        holder = read(instance_dir)
        if holder is None or holder["run"] != run:
            return {"released": False}
        os.unlink(path_of(instance_dir))
    return {"released": True}
