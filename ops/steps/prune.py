"""Remove the oldest releases beyond the keep count; never one that a link names."""

from typing import Any

from ops.run import Run


def do(run: Run, *, keep: int) -> dict[str, Any]:
    found: dict[str, Any] = run.call("store.prune", keep=keep)
    return found
