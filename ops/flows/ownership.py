"""Become the one writer of a host, and settle what a dead writer left."""

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from ops.errors import LockHeld, OpsError, Unsafe
from ops.execute import end, recover
from ops.model.state import Owner, armed, confirmed, open_run, owner
from ops.run import Identity, Run, alive_here

_BEAT_S = 2.0


@contextmanager
def owned(run: Run, message: str, *, break_lock: bool = False) -> Iterator[None]:
    """Own the host for the length of the block, by the rules for dead owners.

    The lock is given back at the end, unless the guard has yet to undo this run: then it explains who left what.

    Raises: LockHeld (a living owner, or a dead one whose pending release the guard will undo), Unsafe when undoing
    failed.
    """
    document = run.identity.lock_document(message)
    found = run.call("lock.acquire", owner=document)
    dead_run = None
    if not found["acquired"]:
        dead_run = _dead_run(run, found["holder"], break_lock)
        found = run.call("lock.take_over", dead_run=dead_run, owner=document)
        if not found["acquired"]:
            raise LockHeld(_held(found["holder"]), host=run.host.name)
        run.say(f"took over the lock of run {dead_run}: its client is gone")
    with _heartbeat(run):
        try:
            run.observe()
            left = dead_run or _unfinished(run)
            if left is not None:
                _settle(run, left)
                renew(run, message)
            yield
        finally:
            if not run.left_to_guard:
                run.call("lock.release", run=run.identity.run)


def renew(run: Run, message: str) -> None:
    """Go on under a new run id, still the owner: one id is one transaction in the journal."""
    identity = Identity.new()
    run.call("lock.take_over", dead_run=run.identity.run, owner=identity.lock_document(message))
    run.identity = identity
    run.sequence = 0
    run.armed = False
    run.seconds = {}
    run.observe()


@contextmanager
def _heartbeat(run: Run) -> Iterator[None]:
    """Beat while the host is owned; one that cannot be reached or was taken over shows at the next step."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(_BEAT_S):
            with suppress(OpsError):
                run.host.call("lock.heartbeat", instance_dir=run.instance_dir, run=run.identity.run, wait_s=_BEAT_S * 5)

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def _dead_run(run: Run, holder: Mapping[str, Any], break_lock: bool) -> str:
    facts = run.observe()
    lock = facts["lock"]
    if lock is None or lock["run"] != holder["run"]:  # it changed hands while we looked
        raise LockHeld(_held(lock or holder), hint="try again", host=run.host.name)
    if owner(facts, this_host=socket.gethostname(), alive=alive_here) is Owner.ALIVE:
        raise LockHeld(
            _held(lock),
            hint=f"wait for it, or look: ops status --host {run.host.name}",
            host=run.host.name,
        )
    pending = armed(facts)
    if pending is not None and confirmed(facts) is None and not break_lock:
        left_s = max(0, round(pending.deadline - facts["time"]))
        raise LockHeld(
            f"run {lock['run']} of {lock['owner']}@{lock['host']} died while {pending.release} was pending; "
            f"the guard undoes it in {left_s} s",
            hint="wait for the guard, or undo it now with --break-lock",
            host=run.host.name,
        )
    return str(lock["run"])


def _held(lock: Mapping[str, Any]) -> str:
    who = f"{lock['owner']}@{lock['host']} (pid {lock['pid']}, run {lock['run']})"
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(lock["since"]))
    return f"locked by {who} since {since}: {lock['message']}"


def _unfinished(run: Run) -> str | None:
    """A run that left markers without a lock, or never closed its journal."""
    pending = armed(run.facts) or confirmed(run.facts)
    if pending is not None:
        return pending.run
    return open_run(run.facts["journal"])


def _settle(run: Run, dead_run: str) -> None:
    """Finish or undo what `dead_run` left, and close it in the journal."""
    run.journal("lock-taken", dead_run=dead_run)
    try:
        found = recover(run, dead_run)
    except OpsError as error:
        raise Unsafe(
            f"undoing what run {dead_run} left failed: {error.message}",
            hint=f"ops status --host {run.host.name}",
            host=run.host.name,
        ) from error
    end(run, "settled", 0)
    outcome = "finished" if found.committed else "undone" if found.plan.steps else "abandoned"
    run.call(
        "journal.append",
        event={"run": dead_run, "event": "run-ended", "outcome": outcome, "by": run.identity.run},
        fenced=False,
    )
