"""Arm the guard anew for the way back; refused when the guard is already on it."""

from typing import Any

from ops.run import Run
from ops.steps import arm


def do(run: Run, *, release: str, deadline_s: float) -> dict[str, Any]:
    return arm.by("guard.rearm", run, release, deadline_s)
