"""Remove the oldest releases beyond the keep count, never one that a link names, and the images and environments that
only they used."""

from typing import Any

from ops.run import Run


def do(run: Run, *, keep: int) -> dict[str, Any]:
    found: dict[str, Any] = run.call(
        "stack.prune", keep=keep, wait_s=900.0, on_event=lambda event: run.say(event["say"])
    )
    return found
