"""A plan: what a run will do, as data. It is JSON, lies in the journal, and another process can go on from it."""

from enum import StrEnum
from typing import Any

from pydantic import Field

from ops.model.base import Data


class Purpose(StrEnum):
    """Why a run touches the host."""

    CANDIDATE = "candidate"
    BASELINE = "baseline"
    ROLLBACK = "rollback"
    CONTROL = "control"


class Step(Data):
    """One change: the kind (a file in `ops/steps/`) and its arguments."""

    kind: str
    args: dict[str, Any] = Field(default_factory=dict)


class Plan(Data):
    """Steps in order."""

    steps: tuple[Step, ...]

    def kinds(self) -> tuple[str, ...]:
        return tuple(step.kind for step in self.steps)
