"""Steps: one file a kind of change, each with `do(run, **args) -> evidence`. Found by file name.

A step looks first, may be repeated, and leaves evidence (JSON) in the journal. What undoes a run is not in the steps:
it is another plan (see `ops.planner.recovery`).
"""

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any

from ops.run import Run

Do = Callable[..., dict[str, Any]]


@cache
def kinds() -> frozenset[str]:
    return frozenset(module.name for module in pkgutil.iter_modules(__path__))


def perform(run: Run, kind: str, args: dict[str, Any]) -> dict[str, Any]:
    """Do one step. Raises: whatever stops it, as an OpsError where the cause is known."""
    if kind not in kinds():
        raise ValueError(f"no such kind of step: {kind}")
    do: Do = importlib.import_module(f"{__name__}.{kind}").do
    return do(run, **args)
