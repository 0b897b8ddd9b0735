"""Mark the release pending and arm the guard: from here the host goes back by itself if nobody confirms."""

from typing import Any

from ops.run import Run


def do(run: Run, *, release: str, deadline_s: float) -> dict[str, Any]:
    return by("guard.arm", run, release, deadline_s)


def by(verb: str, run: Run, release: str, deadline_s: float) -> dict[str, Any]:
    """Arm by one of the guard's two verbs, for the way forward or the way back."""
    wall_s = run.host.clock.to_wall_s(deadline_s)
    run.call(
        verb,
        run=run.identity.run,
        release=release,
        baseline=not run.profile(release).speculative,
        deadline_s=wall_s,
        supervisor=run.supervisor,
    )
    run.now_armed(wall_s)
    return {"deadline_s": deadline_s}
