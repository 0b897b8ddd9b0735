"""Stop what runs and prove it: no process of ours, ports free, GPU memory back. Others' processes are only reported."""

from typing import Any

from ops.errors import RemoteFailed, StepFailed
from ops.run import Run


def do(run: Run, *, want_stopped: bool = False) -> dict[str, Any]:
    links = run.facts["links"]
    releases = [r for r in {links["current"], links["pending"], *run.releases} if r and _known(run, r)]
    profiles = [run.profile(release) for release in releases]
    endpoints = sorted({(run.address(release), run.profile(release).engine.port) for release in releases})
    timeout_s = max((profile.timeouts.stop_timeout_s for profile in profiles), default=60.0)
    wall_s = run.host.clock.to_wall_s(timeout_s)
    try:
        found: dict[str, Any] = run.call(
            "lifecycle.stop",
            supervisor=run.supervisor,
            endpoints=endpoints,
            deadline_s=wall_s,
            wait_s=wall_s + 90.0,
            want_stopped=want_stopped,
            on_event=lambda event: run.say(event["say"]),
        )
    except RemoteFailed as error:
        raise StepFailed(
            error.message, hint="free what is named, then run the command again", host=run.host.name
        ) from error
    for holder in found["foreign"]:
        run.say(
            f"left alone: pid {holder['pid']} of {holder['user']} ({holder['process_name']}) "
            f"holds {holder['used_mib']} MiB of GPU memory"
        )
    return found


def _known(run: Run, release: str) -> bool:
    return release in run.releases or run.facts["manifests"].get(release) is not None
