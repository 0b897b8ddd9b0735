"""What a check concluded: one question, one outcome, the evidence, and what to do about it.

Preflight checks and gate checks speak this one language. The invariant: *inconclusive* and *skipped* are never
*pass*, and a set of checks passes only when at least one really did.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator


class Outcome(StrEnum):
    """How a question was answered."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"


class Verdict(BaseModel):
    """The answer of one check.

    Raises: ValueError when something that did not pass says nothing: every outcome but *pass* needs a message, and
    *fail* and *inconclusive* need a remedy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="The check's name, as scripts and profiles know it.")
    question: str = Field(description="What the check asks of the host or server.")
    outcome: Outcome
    message: str = Field(default="", description="What was seen against what was wanted, with units.")
    remedy: str = Field(default="", description="What to do next, one sentence.")
    evidence: dict[str, JsonValue] = Field(default_factory=dict, description="The figures behind the answer.")

    @model_validator(mode="after")
    def _says_enough(self) -> Self:
        if self.outcome is not Outcome.PASS and not self.message:
            raise ValueError(f"check {self.name}: {self.outcome} without a message")
        if self.outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE) and not self.remedy:
            raise ValueError(f"check {self.name}: {self.outcome} without a remedy")
        return self

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.PASS

    def line(self) -> str:
        """Return the verdict as one line of text, for terminals and journals."""
        return f"{self.name}: {self.outcome.value}" + (f": {self.message}" if self.message else "")


class Question:
    """Writes the verdicts of one check, so that its name and question are said once.

    >>> Question("alive", "Is the engine running?").passed("pid 17 since 12 s").line()
    'alive: pass: pid 17 since 12 s'
    """

    def __init__(self, name: str, question: str) -> None:
        self.name = name
        self.question = question

    def passed(self, message: str = "", **evidence: Any) -> Verdict:
        return self._answer(Outcome.PASS, message, "", evidence)

    def failed(self, message: str, remedy: str, **evidence: Any) -> Verdict:
        return self._answer(Outcome.FAIL, message, remedy, evidence)

    def inconclusive(self, message: str, remedy: str, **evidence: Any) -> Verdict:
        return self._answer(Outcome.INCONCLUSIVE, message, remedy, evidence)

    def skipped(self, reason: str, **evidence: Any) -> Verdict:
        return self._answer(Outcome.SKIPPED, reason, "", evidence)

    def _answer(self, outcome: Outcome, message: str, remedy: str, evidence: dict[str, Any]) -> Verdict:
        return Verdict(
            name=self.name,
            question=self.question,
            outcome=outcome,
            message=message,
            remedy=remedy,
            evidence=evidence,
        )


def combine(verdicts: Iterable[Verdict]) -> Outcome:
    """Return the outcome of a set: a fail decides, then an inconclusive, then a pass.

    A set in which nothing was really asked (empty, or all skipped) is inconclusive.
    """
    outcomes = {verdict.outcome for verdict in verdicts}
    for decisive in (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS):
        if decisive in outcomes:
            return decisive
    return Outcome.INCONCLUSIVE


def not_passed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return what stands in the way, failed ones first, each kind in the order asked."""
    return [v for v in verdicts if v.outcome is Outcome.FAIL] + [
        v for v in verdicts if v.outcome is Outcome.INCONCLUSIVE
    ]
