"""Become the one writer of a host, and settle what a dead writer left."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ops.errors import ConnectionLost, GuardActed, Interrupted, LockHeld, OpsError, Unsafe
from ops.execute import end, left_to_guard, recover
from ops.interrupts import interrupts
from ops.model.state import Facts, Owner, armed, confirmed, open_runs, owner, story
from ops.planner import Recovery
from ops.run import Identity, Run, alive_here, place

_BEAT_S = 2.0


@contextmanager
def owned(run: Run, message: str, *, break_lock: bool = False) -> Iterator[None]:
    """Own the host for the length of the block, by the rules for dead owners.

    The lock is given back at the end, unless the guard has yet to undo this run: then it explains who left what.

    Raises: LockHeld (a living owner, or a dead one whose pending release the guard will undo), Unsafe when undoing
    failed.
    """
    with interrupts() as signals:
        maybe_ours = True
        try:
            try:
                dead_run = _acquire(run, message, break_lock)
            except (LockHeld, ConnectionLost):
                maybe_ours = False
                raise
            with _heartbeat(run):
                run.observe()
                left = _unfinished(run, dead_run)
                if left:
                    _settle(run, left)
                    renew(run, message)
                yield
        except KeyboardInterrupt as error:
            # A transaction says itself what became of it; this one came before, between or after them.
            raise Interrupted("interrupted; nothing is left half done on the host", host=run.host.name) from error
        finally:
            signals.defer()
            if maybe_ours and not run.left_to_guard:
                _release(run)


def _acquire(run: Run, message: str, break_lock: bool) -> str | None:
    """Take the lock; returns the dead run it was taken from, or None when the host was free."""
    document = run.identity.lock_document(message)
    found = run.call("lock.acquire", owner=document)
    if found["acquired"]:
        return None
    facts = run.observe()
    if facts["lock"] is None or facts["lock"]["run"] != found["holder"]["run"]:  # it changed hands while we looked
        raise LockHeld(_held(facts["lock"] or found["holder"]), hint="try again", host=run.host.name)
    dead_run = _dead_run(run, facts, break_lock)
    found = run.call("lock.take_over", dead_run=dead_run, owner=document)
    if not found["acquired"]:
        raise LockHeld(_held(found["holder"]), host=run.host.name)
    run.say(f"took over the lock of run {dead_run}: its client is gone")
    return dead_run


def _release(run: Run) -> None:
    try:
        run.call("lock.release", run=run.identity.run)
    except OpsError as error:
        run.say(f"the lock could not be given back: {error.message}; the next command takes it over")


def renew(run: Run, message: str) -> None:
    """Go on under a new run id, still the owner: one id is one transaction in the journal."""
    identity = Identity.new()
    found = run.call("lock.take_over", dead_run=run.identity.run, owner=identity.lock_document(message))
    if not found["acquired"]:
        raise LockHeld(_held(found["holder"]), host=run.host.name)
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


def refuse_if_held(run: Run, break_lock: bool) -> None:
    """Say at once that the host has an owner, before anything slow is looked at. Raises: LockHeld."""
    if run.facts["lock"] is not None:
        _dead_run(run, run.facts, break_lock)


def _dead_run(run: Run, facts: Facts, break_lock: bool) -> str:
    """The run whose lock may be taken over. Raises: LockHeld when it may not."""
    lock = facts["lock"]
    if owner(facts, here=place(), alive=alive_here) is Owner.ALIVE:
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


def _unfinished(run: Run, dead_run: str | None) -> list[str]:
    """Runs to settle before anything else: dead ones, and those that left markers. A run that ended unsafe is not
    among them: it was tried, and what the operator asks for now may be the repair."""
    journal = run.facts["journal"]
    found = open_runs(journal)
    pending = confirmed(run.facts) or (armed(run.facts) if not story(journal) else None)
    for name in (dead_run, pending.run if pending else None):
        if name is not None and name not in found:
            found.append(name)
    return found


def _settle(run: Run, dead_runs: Sequence[str]) -> None:
    """Finish or undo what dead runs left, and close them in the journal."""
    names = ", ".join(dead_runs)
    with interrupts() as signals:
        try:
            with signals.recovering():
                for dead_run in dead_runs:
                    run.journal("lock-taken", dead_run=dead_run)
                found = recover(run)
                signals.defer()
                _close(run, dead_runs, found)
        except KeyboardInterrupt:
            raise left_to_guard(run, f"interrupted while undoing what {names} left") from None
        except ConnectionLost as error:
            raise left_to_guard(run, error.message) from error
        except GuardActed as error:
            raise LockHeld(
                f"the guard is undoing what {names} left right now", hint="try again in a minute", host=run.host.name
            ) from error
        except OpsError as error:
            end(run, "unsafe", 4)
            raise Unsafe(
                f"undoing what run {names} left failed: {error.message}",
                hint=f"ops status --host {run.host.name}; the same command again goes on without undoing",
                host=run.host.name,
            ) from error
    if signals.count:
        raise Interrupted(f"interrupted; what {names} left is settled, nothing else was done", host=run.host.name)


def _close(run: Run, dead_runs: Sequence[str], found: Recovery) -> None:
    """End this run and the dead ones in one write: a client that dies here leaves all of them open, or none."""
    outcome = "finished" if found.committed else "undone" if found.plan.steps else "abandoned"
    ended = {"event": "run-ended", "outcome": outcome, "by": run.identity.run}
    end(run, "settled", 0, also=[{"run": dead_run, **ended} for dead_run in dead_runs])
    run.say(f"what {', '.join(dead_runs)} left is {outcome}")
