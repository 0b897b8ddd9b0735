"""Make the host's files those of the release: `current`, the unit, /etc/nccl.conf. None: nothing will serve."""

from typing import Any

from ops.run import Run
from ops.steps.start import refuse_drift


def do(run: Run, *, release: str | None) -> dict[str, Any]:
    if release is not None:
        refuse_drift(run, release)
    found: dict[str, Any] = run.call("lifecycle.activate", release=release, supervisor=run.supervisor, wait_s=90.0)
    for container in (found.get("supervisor") or {}).get("blind", ()):
        run.say(f"container {container}: nvidia-smi does not work in it since `systemctl daemon-reload`; restart it")
    return found
