"""Run a plan as a transaction: journal, do, and on any failure go back.

Invariant: when `transaction` returns or raises anything but `Unsafe`, the host serves what the result says. `Unsafe`
means that the guard will act, or that a person must look.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ops.errors import ConnectionLost, GuardActed, HostError, Interrupted, OpsError, RolledBack, Unsafe
from ops.model.plan import Plan, Purpose
from ops.model.state import Links, armed, confirmed, profile_name, run_events
from ops.planner import Recovery, guard_deadline_s, recovery
from ops.run import Run, observe
from ops.steps import perform


def transaction(run: Run, plan: Plan, *, command: str, purpose: Purpose, release: str) -> None:
    """Execute `plan` under the lock that the run holds; undo it when it fails.

    Raises: RolledBack (the earlier state is proven), Interrupted (the same, after Ctrl-C), Unsafe, or a bug's own
    exception after undoing.
    """
    with terminable():
        try:
            run.journal(
                "run-started",
                command=command,
                purpose=purpose.value,
                profile=profile_name(release),
                release=release,
                previous=run.facts["links"]["current"],
                admitted=run.facts["admitted"] is not None,
                plan=plan.model_dump(mode="json")["steps"],
                by={"user": run.identity.user, "host": run.identity.host, "pid": run.identity.pid},
            )
            run_plan(run, plan)
        except BaseException as cause:
            _undo(run, cause, undoable=purpose is not Purpose.CONTROL)
        else:
            end(run, "done", 0)


def run_plan(run: Run, plan: Plan, *, recovering: bool = False) -> None:
    """Do the steps in order, a journal line before and after each."""
    for step in plan.steps:
        number = run.next_sequence()
        data = step.model_dump(mode="json")
        run.journal("step-started", seq=number, step=data, recovery=recovering)
        run.reporter.step(run.host.name, step.kind, str(step.args.get("release", "")))
        begun = run.host.clock.now_s()
        try:
            evidence = perform(run, step.kind, step.args)
        except (OpsError, OSError, ValueError, KeyError) as error:
            _note_failure(run, number, data, error)
            raise
        seconds = round(run.host.clock.now_s() - begun, 2)
        run.seconds[step.kind] = seconds
        run.journal("step-done", seq=number, step=data, evidence=evidence, seconds=seconds, recovery=recovering)


def _note_failure(run: Run, number: int, step: dict[str, Any], error: Exception) -> None:
    """Say in the journal that a step failed, unless the host is what failed."""
    if isinstance(error, (ConnectionLost, GuardActed)):
        return
    try:
        run.journal("step-failed", seq=number, step=step, error=str(error), fenced=False)
    except HostError as second:
        run.say(f"the journal could not be written: {second.message}")


def _undo(run: Run, cause: BaseException, *, undoable: bool) -> None:
    text = "interrupted" if isinstance(cause, KeyboardInterrupt) else str(cause)
    run.say(text)
    if not undoable:
        end(run, "failed", 4)
        raise Unsafe(
            f"{text}; nothing was undone. {_running_words(run)}", hint=_look(run), host=run.host.name
        ) from cause
    try:
        found = recover(run, run.identity.run)
    except KeyboardInterrupt:
        raise _left_to_guard(run, "interrupted a second time") from cause
    except GuardActed:
        raise _after_guard(run, text) from cause
    except ConnectionLost as error:
        raise _left_to_guard(run, error.message) from cause
    except OpsError as error:
        end(run, "unsafe", 4)
        raise Unsafe(
            f"rolling back failed too: {error.message}. First failure: {text}. {_running_words(run)} "
            "The host takes no traffic",
            hint=f"{_look(run)}; then `ops rollback --host {run.host.name}` or `ops deploy`",
            host=run.host.name,
        ) from cause
    except Exception as error:
        raise _left_to_guard(run, f"a bug in ops while going back: {error!r}; first failure: {text}") from error
    _end_failed(run, cause, found)


def recover(run: Run, dead_run: str) -> Recovery:
    """End `dead_run` (this run, or one whose client is gone) from what lies on the host."""
    run.observe()
    events = run_events(run.facts, dead_run)
    pending = armed(run.facts)
    links = Links.of(run.facts)
    target = links.last_good or links.baseline
    deadline_s = guard_deadline_s(run.profile(target)) if target else 600.0
    found = recovery(events, links, pending, confirmed(run.facts), deadline_s)
    if found.plan.steps:
        run.say(f"going back to {found.target or 'nothing running'}: {', '.join(found.plan.kinds())}")
        run.armed = False
        run_plan(run, found.plan, recovering=True)
    return found


def _end_failed(run: Run, cause: BaseException, found: Recovery) -> None:
    """Close a run that was recovered, and say how. A run past its commit point is done, whatever came after."""
    if found.committed:
        end(run, "done", 0)
        if not isinstance(cause, (OpsError, KeyboardInterrupt)):
            raise cause
        return
    state = f"{found.target} serves again" if found.target else "nothing serves, as before"
    if isinstance(cause, KeyboardInterrupt):
        end(run, "interrupted", 130)
        raise Interrupted(f"interrupted and restored: {state}", host=run.host.name) from cause
    if isinstance(cause, OpsError):
        end(run, "rolled-back", 3)
        raise RolledBack(f"{cause.message}. Rolled back: {state}", hint=cause.hint, host=run.host.name) from cause
    end(run, "rolled-back", 1)
    raise cause


def _after_guard(run: Run, text: str) -> Unsafe:
    """The guard (or a boot) was faster: find out what it restored, and say so."""
    facts = wait_for_guard(run)
    serving = facts["links"]["current"]
    return Unsafe(
        f"{text}. The host went back to {serving or 'nothing running'} by itself; that is restored, not yet gated",
        hint=f"ops gate --host {run.host.name}, then ops status",
        host=run.host.name,
    )


def wait_for_guard(run: Run, patience_s: float = 60.0) -> Any:
    """Wait (wall seconds) until the guard has finished with the pending release; returns the facts."""
    deadline = time.monotonic() + patience_s
    while True:
        facts = observe(run.host)
        if armed(facts) is None or time.monotonic() > deadline:
            run.facts = facts
            return facts
        time.sleep(1.0)


def end(run: Run, outcome: str, exit_code: int) -> None:
    """Close the run in the journal."""
    run.journal("run-ended", outcome=outcome, exit_code=exit_code, phases=run.seconds)


def _left_to_guard(run: Run, why: str) -> Unsafe:
    run.left_to_guard = True
    return Unsafe(
        f"{why}; left to the guard: the host goes back to its last good release by itself",
        hint=_look(run),
        host=run.host.name,
    )


def _look(run: Run) -> str:
    return f"ops status --host {run.host.name}"


def _running_words(run: Run) -> str:
    try:
        facts = observe(run.host)
    except OpsError:
        return "What runs there is unknown."
    engine = facts["engine"]
    current = facts["links"]["current"] or "nothing"
    return f"Current is {current}, the supervisor says {engine['state']} (pid {engine['pid']})."


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM means the same as Ctrl-C. Only the main thread may set handlers; elsewhere the caller's stay."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
