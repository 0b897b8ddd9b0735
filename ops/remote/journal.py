"""The journal: append-only JSON lines, one fsync an event.

Invariant: a line is appended once, however often the client repeats the request; a torn last line (power cut) never
swallows the next one.
"""

import errno
import json
import os
import time

from ops.remote import lock, reserve

_TAIL_BYTES = 256 * 1024
_REPEATED_WITHIN = 20
"""A repeated request is the client's last one; between it and its first try only the guard and the engine's exits can
have written."""


def path_of(instance_dir):
    return os.path.join(instance_dir, "journal.jsonl")


def append(emit, *, instance_dir, event, also=(), fenced=True):
    """Append `event`, and in the same write the events `also`: whoever reads sees all of them or none.

    Fenced: refuses when the event's run no longer owns the lock (the guard or another client acted).
    """
    if fenced:
        lock.require(instance_dir, event["run"])
    if any(_same(old, event) for old in tail(instance_dir)[-_REPEATED_WITHIN:]):
        return {"appended": False}
    write(instance_dir, event, *also)
    return {"appended": True}


def _same(old, event):
    return {key: value for key, value in old.items() if key != "at"} == event


def write(instance_dir, event, *also):
    """Append a line an event. A line of the way back may use the reserve; one that begins something new may not."""
    at = round(time.time(), 3)
    line = "".join(json.dumps({"at": at, **e}, separators=(",", ":")) + "\n" for e in (event, *also))
    forward = event["event"] in ("run-started", "step-started") and not event.get("recovery")
    if forward:
        _append(instance_dir, line)
    else:
        reserve.spend(instance_dir, lambda: _append(instance_dir, line))


def _append(instance_dir, line):
    fd = os.open(path_of(instance_dir), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            line = "\n" + line
        data = line.encode()
        written = os.write(fd, data)
        if written < len(data):
            os.ftruncate(fd, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path_of(instance_dir))
        os.fsync(fd)
    finally:
        os.close(fd)


def tail(instance_dir, limit_bytes=_TAIL_BYTES):
    """The events in the last `limit_bytes` of the journal, oldest first; torn lines are left out."""
    try:
        with open(path_of(instance_dir), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = max(0, size - limit_bytes)
            file.seek(start)
            lines = file.read().split(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return []
    events = []
    for line in lines[1 if start else 0 :]:
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return events


def read(emit, *, instance_dir):
    """The whole journal: {"events": [...]}."""
    return {"events": tail(instance_dir, limit_bytes=1 << 40)}
