"""Let traffic in. Where several hosts serve one model, requests go to rank 0 alone."""

from typing import Any

from ops.model.release import follows
from ops.run import Run


def do(run: Run, *, release: str) -> dict[str, Any]:
    if run.host.spec.node is not None and follows(run.manifest(release)):
        return {"release": release, "admitted": False, "why": "requests go to rank 0"}
    if run.peers is not None and not run.peers.may_admit():
        return {"release": release, "admitted": False, "why": run.peers.broken}
    run.router.admit(run.host, release)
    return {"release": release}
