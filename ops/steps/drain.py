"""Take traffic away and wait until the engine itself reports no running request, at most `drain_timeout_s`.

Then the stop cuts what still runs: one request that never ends must not keep a bad release in service.
"""

from typing import Any

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
        waited = f"after {profile.timeouts.drain_timeout_s:.0f} s of draining (timeouts.drain_timeout_s)"
        run.say(f"{found['running']} requests still run {waited}: the stop cuts them")
    return {**found, "seconds": run.host.clock.from_wall_s(found["seconds"])}
