"""Take traffic away and wait until the engine itself reports no running request."""

from typing import Any

from ops.errors import StepFailed
from ops.run import Run


def do(run: Run) -> dict[str, Any]:
    run.router.drain(run.host)
    current = run.facts["links"]["current"]
    if current is None or run.facts["engine"]["state"] not in ("running", "starting"):
        return {"running": None, "seconds": 0.0}
    profile = run.profile(current)
    wall_s = run.host.clock.to_wall_s(profile.timeouts.drain_timeout_s)
    found: dict[str, Any] = run.call(
        "lifecycle.drain",
        port=profile.engine.port,
        address=run.address(current),
        api_key=run.key("api-key"),
        deadline_s=wall_s,
        wait_s=wall_s + 30.0,
        on_event=lambda event: run.say(event["say"]),
    )
    if found["running"]:
        raise StepFailed(
            f"{found['running']} requests are still running after {profile.timeouts.drain_timeout_s:.0f} s of draining",
            hint="raise timeouts.drain_timeout_s, or stop the clients that hold them",
            host=run.host.name,
        )
    return {**found, "seconds": run.host.clock.from_wall_s(found["seconds"])}
