"""Follow an engine's start, and its log, on the host."""

import os
import queue
import threading
import time

from ops.remote import guard, probe, processes, supervisors

_POLL_S = 0.05
_HEALTH_EVERY_S = 0.5
_CHUNK_BYTES = 1 << 20


class _Tail:
    """New whole lines of a file, from an offset on; follows a rotation that empties the file."""

    def __init__(self, path, offset):
        self.path = path
        self.offset = offset
        self._rest = b""

    @property
    def resume_at(self):
        """Where the next whole line begins: an offset to go on from without losing or repeating one."""
        return self.offset - len(self._rest)

    def lines(self):
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self.offset:
                    self.offset, self._rest = 0, b""
                file.seek(self.offset)
                data = file.read(_CHUNK_BYTES)
        except FileNotFoundError:
            return []
        self.offset += len(data)
        parts = (self._rest + data).split(b"\n")
        self._rest = parts.pop()
        return [part.decode(errors="replace") for part in parts]


def start(emit, *, instance_dir, run, pid, starttime, log, log_offset, address, port, ready, deadline_at, supervisor):
    """Stream the log until the engine answers /health with 200 on our own socket and its supervisor calls it running,
    until it dies, or until the host's clock says `deadline_at` (epoch seconds). `ready`: {mark, patience_s (wall)}:
    an engine that wrote `mark` that long ago serves too, whatever /health says: whether that is good is the gate's
    question.

    Events: {"lines": [...], "offset": n} (resume with that offset). Returns {"outcome":
    serving|died|timed-out|undone, "offset", "health": last status}. `undone`: the guard, a boot or another client
    took this run's release away; the engine's death is its consequence then, not a cause.
    """
    tail = _Tail(log, log_offset)
    answers: "queue.SimpleQueue[int | None]" = queue.SimpleQueue()
    stop = threading.Event()
    threading.Thread(target=_poll_health, args=(answers, stop, pid, address, port, instance_dir), daemon=True).start()
    health, ready_at = None, None
    try:
        while True:
            lines = tail.lines()
            if lines:
                if ready_at is None and any(ready["mark"] in line for line in lines):
                    ready_at = time.monotonic()
                emit({"lines": lines, "offset": tail.resume_at})
            while not answers.empty():
                health = answers.get()
            outcome = None
            if run is not None and not _still_armed(instance_dir, run):
                outcome = "undone"
            elif not processes.alive(pid, starttime):
                rebooted = run is not None and guard.booted_since(instance_dir, run, supervisor)
                outcome = "undone" if rebooted else "died"
            elif (ready_at is not None and time.monotonic() - ready_at > ready["patience_s"]) or (
                health == 200 and supervisors.get(supervisor).state()["state"] == "running"
            ):
                outcome = "serving"
            elif time.time() > deadline_at:
                outcome = "timed-out"
            if outcome:
                lines = tail.lines()
                if lines:
                    emit({"lines": lines, "offset": tail.resume_at})
                return {"outcome": outcome, "offset": tail.resume_at, "health": health}
            time.sleep(_POLL_S)
    finally:
        stop.set()


def _still_armed(instance_dir, run):
    armed = guard.read_marker(instance_dir, "armed") or guard.read_marker(instance_dir, "armed.client")
    return armed is not None and armed.get("RUN") == run


def _poll_health(answers, stop, pid, address, port, instance_dir):
    """Ask /health only on a socket that this engine owns: a 200 may come from a server that was there before.

    In a container the engine is no child of what the supervisor started; it carries the instance's marker.
    """
    family = {pid}
    while not stop.is_set():
        listeners = processes.listeners({port})
        for entry in listeners:
            if entry["pid"] in family or _descends(entry["pid"], pid) or _marked(entry["pid"], instance_dir):
                status, _ = probe.get(address, port, "/health", timeout_s=25.0)  # the engine itself waits up to 20 s
                answers.put(status)
                break
        stop.wait(_HEALTH_EVERY_S if listeners else 0.1)


def _marked(pid, instance_dir):
    return bool(pid) and (processes.environ(pid) or {}).get(processes.MARKER) == instance_dir


def _descends(pid, ancestor):
    for _ in range(32):
        facts = processes.stat(pid) if pid else None
        if facts is None:
            return False
        if facts["ppid"] == ancestor:
            return True
        pid = facts["ppid"]
    return False


def log(emit, *, log, lines, follow):
    """The last `lines` lines; with `follow` goes on streaming until the client leaves. Events: {"lines": [...]}."""
    try:
        with open(log, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = max(0, size - 512 * max(lines, 1) * 4)
            file.seek(start)
            found = file.read().decode(errors="replace").split("\n")
    except FileNotFoundError:
        found, size = [], 0
    emit({"lines": found[:-1][-lines:] if lines else []})
    tail = _Tail(log, size)
    while follow:
        fresh = tail.lines()
        if fresh:
            emit({"lines": fresh})
        time.sleep(_POLL_S)
    return {}
