"""Prove that what runs is the release as deployed, with the environment that its ranks held before."""

from collections.abc import Mapping
from typing import Any

from ops.errors import StepFailed
from ops.model.verdict import not_passed
from ops.run import Run
from ops.verify import look


def do(run: Run, *, release: str, held: Mapping[str, str] | None) -> dict[str, Any]:
    """Args: held: NCCL variables that every rank held before (see `held_by_ranks`); None: unknown, so not compared."""
    facts, verdicts = look(run.host)
    if facts["links"]["current"] != release:
        raise StepFailed(f"{facts['links']['current']} is there, not {release}", hint="ops history", host=run.host.name)
    problems = not_passed(verdicts)
    if problems:
        raise StepFailed(
            "ops verify: " + "; ".join(v.line() for v in problems), hint=problems[0].remedy, host=run.host.name
        )
    after = held_by_ranks(facts["processes"])
    if held is not None and after != held:
        raise StepFailed(
            f"the ranks' NCCL environment changed: {_changes(held, after or {})}",
            hint="ops verify --explain",
            host=run.host.name,
        )
    return {"checks": [v.line() for v in verdicts], "held": after}


def held_by_ranks(processes: list[Mapping[str, Any]]) -> dict[str, str] | None:
    """The NCCL variables that all ranks hold alike; None when a rank's cannot be read, or they differ."""
    ranks = [p for p in processes if p["title"].startswith("sglang::scheduler")]
    if not ranks or any(rank["environ"] is None for rank in ranks):
        return None
    found = [{k: v for k, v in rank["environ"].items() if k.startswith("NCCL_")} for rank in ranks]
    return found[0] if all(one == found[0] for one in found) else None


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    names = sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
    return ", ".join(f"{name} was {before.get(name)}, is {after.get(name)}" for name in names)
