"""Run a plan as a transaction: journal, do, and on any failure go back.

Invariant: when `transaction` returns or raises anything but `Unsafe`, the host serves what the result says. `Unsafe`
means that the guard will act, or that a person must look.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ops.errors import ConnectionLost, GuardActed, HostError, Interrupted, OpsError, RolledBack, Unsafe
from ops.interrupts import Interrupts, interrupts
from ops.model.plan import Plan, Purpose, Step
from ops.model.state import Links, armed, confirmed, last_committed, last_step, profile_name, story
from ops.planner import Recovery, guard_deadline_s, recovery, way_back
from ops.restored import after_guard
from ops.run import Run, observe
from ops.steps import perform


def transaction(run: Run, plan: Plan, *, command: str, purpose: Purpose, release: str) -> None:
    """Execute `plan` under the lock that the run holds; undo it when it fails.

    Raises: RolledBack (the earlier state is proven), Interrupted (the same, after Ctrl-C), Unsafe, or a bug's own
    exception after undoing.
    """
    with interrupts() as signals:
        try:
            if run.peers is not None:
                run.peers.begin()
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
            signals.defer()
            end(run, "done", 0)
        except BaseException as cause:
            _undo(run, cause, signals, undoable=purpose is not Purpose.CONTROL)


def run_plan(run: Run, plan: Plan, *, recovering: bool = False) -> None:
    """Do the steps in order, a journal line before and after each. recovering: `run.facts` are of after the failure."""
    if recovering:
        # An interrupt or a reboot may have come between a step's line on the host and the note of it here.
        run.sequence = max(run.sequence, last_step(run.facts["journal"], run.identity.run))
    for step in plan.steps:
        with _beside_peers(run, step, recovering):
            _run_step(run, step, recovering)


def _beside_peers(run: Run, step: Step, recovering: bool) -> AbstractContextManager[None]:
    return run.peers.step(step.kind, recovering=recovering) if run.peers is not None else nullcontext()


def _run_step(run: Run, step: Step, recovering: bool) -> None:
    number = run.sequence + 1
    data = step.model_dump(mode="json")
    run.journal("step-started", seq=number, step=data, recovery=recovering)
    run.sequence = number  # only now: a line that found no room is no step, and the numbers have no hole
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
    """Say in the journal that a step failed, unless the host is what failed or another writer ended the run."""
    if isinstance(error, (ConnectionLost, GuardActed)):
        return
    try:
        run.journal("step-failed", seq=number, step=step, error=str(error))
    except GuardActed:
        return
    except HostError as second:
        run.say(f"the journal could not be written: {second.message}")


def _undo(run: Run, cause: BaseException, signals: Interrupts, *, undoable: bool) -> None:
    text = "interrupted" if isinstance(cause, KeyboardInterrupt) else str(cause)
    try:
        with signals.recovering():
            run.say(text)
            if run.peers is not None:
                run.peers.going_back(text)
            if isinstance(cause, ConnectionLost):
                raise left_to_guard(run, cause.message) from cause
            if not undoable:
                _not_undone(run, cause, text)
            found = _restore(run, text)
            signals.defer()
            _end_failed(run, cause, found)
    except KeyboardInterrupt:
        raise left_to_guard(run, "interrupted a second time") from cause
    except ConnectionLost as error:
        raise left_to_guard(run, error.message) from cause
    except OpsError as error:
        if error is cause or isinstance(error, (RolledBack, Interrupted, Unsafe)):
            raise
        raise _unsafe(run, error, text) from cause
    except Exception as error:
        if error is cause:
            raise
        raise left_to_guard(run, f"a bug in ops while going back: {error!r}; first failure: {text}") from error


def _restore(run: Run, text: str) -> Recovery:
    """Go back, or prove what the host restored when it was faster."""
    try:
        return recover(run)
    except GuardActed as error:
        run.say(f"{error.message}; looking at what the host did by itself")
        return after_guard(run, text, run_plan)


def recover(run: Run) -> Recovery:
    """End what is unfinished on the host (this run, or runs whose clients are gone) from what lies there.

    Raises: GuardActed when the host goes back by itself, or did; the error of a step that failed for another reason.
    """
    facts = run.observe()
    if (facts["lock"] or {}).get("run") != run.identity.run:
        raise GuardActed("this run no longer owns the host", host=run.host.name)
    links = Links.of(facts)
    events = story(facts["journal"])
    target = way_back(events, links)
    deadline_s = guard_deadline_s(run.profile(target)) if target else 600.0
    found = recovery(events, links, armed(facts), confirmed(facts), deadline_s)
    if found.plan.steps:
        if found.committed:
            run.say(f"{found.target} passed its commit point: {', '.join(found.plan.kinds())}")
        else:
            run.say(f"going back to {found.target or 'nothing running'}: {', '.join(found.plan.kinds())}")
        try:
            run_plan(run, found.plan, recovering=True)
        except (ConnectionLost, GuardActed):
            raise
        except OpsError as error:
            if not _taken(run):
                raise
            raise GuardActed(f"{error.message}: the host acted by itself", host=run.host.name) from error
    return found


def _taken(run: Run) -> bool:
    """Whether a boot, the guard or another client took the host from this run: no step of it can succeed then."""
    facts = run.observe()
    pending = armed(facts)
    rebooted = pending is not None and pending.boot != facts["boot_id"]
    return rebooted or bool(facts["guard"]["fired"]) or (facts["lock"] or {}).get("run") != run.identity.run


def _end_failed(run: Run, cause: BaseException, found: Recovery) -> None:
    """Close a run that was recovered, and say how. A run past its commit point is done, whatever came after."""
    if found.committed:
        end(run, "done", 0)
        if isinstance(cause, KeyboardInterrupt):
            raise Interrupted(
                f"interrupted after its commit point: {found.target} serves and takes traffic", host=run.host.name
            ) from cause
        if not isinstance(cause, OpsError):
            raise cause
        if run.peers is not None and run.peers.broken:
            run.say(f"{found.target} is confirmed here, but not on every host: it takes no traffic")
        else:
            run.say(f"{found.target} had passed its commit point: it serves and takes traffic")
        return
    if not found.plan.steps:
        state = f"the server was not touched, {found.target} is current" if found.target else "nothing was touched"
    else:
        state = f"{found.target} serves again" if found.target else "nothing serves, as before"
    if isinstance(cause, KeyboardInterrupt):
        end(run, "interrupted", 130)
        raise Interrupted(f"interrupted and restored: {state}", host=run.host.name) from cause
    if isinstance(cause, OpsError):
        end(run, "rolled-back", 3)
        raise RolledBack(f"{cause.message}. Rolled back: {state}", hint=cause.hint, host=run.host.name) from cause
    end(run, "rolled-back", 1)
    raise cause


def _not_undone(run: Run, cause: BaseException, text: str) -> None:
    end(run, "failed", 4)
    raise Unsafe(f"{text}; nothing was undone. {_running_words(run)}", hint=_look(run), host=run.host.name) from cause


def _unsafe(run: Run, error: OpsError, text: str) -> Unsafe:
    """Going back failed as well: close the run, and say what runs, what the host will do, and what a person can do."""
    words, facts = _running_words(run), run.facts
    committed = last_committed(story(facts["journal"]))
    pending = armed(facts)
    try:
        end(run, "unsafe", 4)
    except OpsError as second:
        words += f" The journal could not be written: {second.message}."
    if committed is not None:
        what = f"{committed} passed its commit point but is not complete: {error.message}. First failure: {text}."
    else:
        what = f"rolling back failed too: {error.message}. First failure: {text}. The host takes no traffic."
    if pending is not None:
        left = max(0, round(pending.deadline - facts["time"]))
        words += f" In {left} s the guard tries once more by itself."
    host = run.host.name
    hint = f"{_look(run)}; ops logs --host {host}; then `ops rollback --host {host} --to <release>` or `ops deploy`"
    return Unsafe(f"{what} {words}", hint=hint, host=host)


def end(run: Run, outcome: str, exit_code: int, *, also: Sequence[Mapping[str, Any]] = ()) -> None:
    """Close the run in the journal. also: the ends of other runs that this one settled."""
    run.journal("run-ended", outcome=outcome, exit_code=exit_code, phases=run.seconds, also=also)


def left_to_guard(run: Run, why: str) -> Unsafe:
    """Go away without having undone anything; the lock stays and explains who left what."""
    run.left_to_guard = True
    if run.armed:
        next_ = "left to the guard: the host goes back to its last good release by itself"
    else:
        next_ = "nothing was pending on the host as far as this run knows; its lock stays until the next command"
    return Unsafe(f"{why}; {next_}", hint=_look(run), host=run.host.name)


def _look(run: Run) -> str:
    return f"ops status --host {run.host.name}"


def _running_words(run: Run) -> str:
    try:
        facts = run.facts = observe(run.host)
    except OpsError:
        return "What runs there is unknown."
    engine = facts["engine"]
    current = facts["links"]["current"] or "nothing"
    return f"Current is {current}, the supervisor says {engine['state']} (pid {engine['pid']})."
