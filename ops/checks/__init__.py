"""Preflight: one file a question about the host, asked before anything is touched. Found by file name (constant
CHECK)."""

from collections.abc import Callable
from dataclasses import dataclass

from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts
from ops.model.verdict import Question, Verdict

__all__ = ["Check", "Judge", "Question", "Verdict"]

Judge = Callable[[Question, Facts, Profile, HostSpec], Verdict]


@dataclass(frozen=True)
class Check:
    """One question. `order`: cheap and basic first."""

    name: str
    question: str
    order: int
    judge: Judge
