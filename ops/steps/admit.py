"""Let traffic in."""

from typing import Any

from ops.run import Run


def do(run: Run, *, release: str) -> dict[str, Any]:
    run.router.admit(run.host, release)
    return {"release": release}
