"""Become the one writer of a host, and settle what a dead writer left."""

import socket
import time

from ops.errors import LockHeld, OpsError, Unsafe
from ops.execute import recover
from ops.model.state import Owner, armed, confirmed, open_run, owner
from ops.run import Run, alive_here


def acquire(run: Run, message: str, *, break_lock: bool = False) -> None:
    """Take the host's lock for `run`, by the rules for dead owners.

    Raises: LockHeld (a living owner, or a dead one whose pending release the guard will undo), Unsafe when undoing failed.
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
    run.observe()
    left = dead_run or _unfinished(run)
    if left is not None:
        _settle(run, left)


def _dead_run(run: Run, holder: dict[str, object], break_lock: bool) -> str:
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


def _held(lock: object) -> str:
    assert isinstance(lock, dict)
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(lock["since"]))
    return f"locked by {lock['owner']}@{lock['host']} (pid {lock['pid']}, run {lock['run']}) since {since}: {lock['message']}"


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
    outcome = "finished" if found.committed else "undone" if found.plan.steps else "abandoned"
    run.call(
        "journal.append",
        event={"run": dead_run, "event": "run-ended", "outcome": outcome, "by": run.identity.run},
        fenced=False,
    )
    run.observe()
