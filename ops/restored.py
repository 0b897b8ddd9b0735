"""After the host acted by itself while its client still lived: wait for it, own it again, and prove what serves.

The guard restores without a gate. A client that is still there can do better: it gates what was restored, so that the
run ends with the old state proven instead of with a question.
"""

import time
from collections.abc import Callable
from typing import Any

from ops.errors import HostError, LockHeld, OpsError, Unsafe
from ops.model.plan import Plan
from ops.model.state import Links, armed, host_ended
from ops.planner import Recovery, restored_plan
from ops.run import Run, observe

_PATIENCE_S = 90.0
"""Wall seconds that the guard may take: stop deadline, sweep and the order to start. The load is followed later."""
_POLL_S = 0.2
_COMING_S = 10.0
"""Wall seconds between the guard's last word on a release and its order to start it."""
_COMING = ("running", "starting")


def after_guard(run: Run, text: str, run_plan: Callable[..., None]) -> Recovery:
    """Wait until the guard is done, and gate what it restored (or finished).

    Raises: Unsafe when another client owns the host by now, or when what was restored does not pass.
    """
    dead = run.identity.run
    facts = wait_for_guard(run)
    current = Links.of(facts).current
    finished = host_ended(facts["journal"], dead) == "confirmed-late"
    run.armed = False
    try:
        found = run.call(
            "lock.acquire", owner=run.identity.lock_document(f"proving what the guard restored: {current}")
        )
        if not found["acquired"]:
            holder = found["holder"]
            raise LockHeld(f"run {holder['run']} of {holder['owner']}@{holder['host']} owns the host now")
        if current is None:
            return Recovery(None, Plan(steps=()), finished)
        plan = restored_plan(current)
        run.say(f"the host went back to {current} by itself: {', '.join(plan.kinds())}")
        run.facts = facts
        run_plan(run, plan, recovering=True)
    except (HostError, LockHeld) as error:
        raise _unproven(run, text, current, error) from error
    except OpsError as error:
        run.journal("run-ended", outcome="unsafe", exit_code=4, phases=run.seconds)
        raise _unproven(run, text, current, error) from error
    return Recovery(current, plan, finished)


def wait_for_guard(run: Run) -> Any:
    """Wait until no pending release is left and the engine was asked for; returns the facts."""
    begun = time.monotonic()
    settled: float | None = None
    while True:
        facts = observe(run.host)
        if armed(facts) is None and settled is None:
            settled = time.monotonic()
        stopped = facts["links"]["current"] is None or facts["guard"]["wanted"] == "stopped"
        if settled is not None and (stopped or facts["engine"]["state"] in _COMING):
            return facts
        since = settled if settled is not None else begun
        if time.monotonic() - since > (_PATIENCE_S if settled is None else _COMING_S):
            return facts
        time.sleep(_POLL_S)


def _unproven(run: Run, text: str, current: str | None, error: OpsError) -> Unsafe:
    return Unsafe(
        f"{text}. The host went back to {current or 'nothing running'} by itself, ungated: {error.message}",
        hint=f"ops status --host {run.host.name}; then `ops start --host {run.host.name}` gates and admits it",
        host=run.host.name,
    )
