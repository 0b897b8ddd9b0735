"""`NcclSet`, and the judgement on NCCL names and values.

NCCL itself ignores an unknown name silently, and a value it cannot read either silently or by dying after minutes of
loading; both end here instead.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ops.model.base import Data, Path, Problem, RulesBroken
from ops.model.env_values import env_problems
from ops.model.nccl_variables import (
    CHOICES,
    DISTANCES,
    FUNCTION_LISTS,
    FUNCTIONS,
    INTEGERS,
    KNOWN,
    LEVELS,
    REMOVED,
    SUBSYSTEMS,
    SWITCHES,
)

INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)")


class NcclSet(Data):
    """A named group of NCCL variables, and the machine topology it was measured on."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")] = Field(
        description="Name of the set: the file's name without `.yaml`."
    )
    description: str = Field("", description="One sentence.")
    topology: Literal["pcie", "nvlink", "any"] = Field(description="GPU links it was tuned for; elsewhere: a warning.")
    env: dict[str, str] = Field(default_factory=dict, description="NCCL_* variables.")
    source: str = Field("", description="Where the values were measured.")

    @model_validator(mode="after")
    def _values_are_nccl(self) -> Self:
        problems = [*env_problems(self.env, ("env",)), *nccl_problems(self.env, ("env",))]
        if problems:
            raise RulesBroken(problems)
        return self


def nccl_problems(env: Mapping[str, str], at: Path) -> Iterator[Problem]:
    """Judge every name and value of a map that should hold NCCL variables only."""
    for name, value in env.items():
        reason = _name_reason(name) or _value_reason(name.removeprefix("NCCL_"), value)
        if reason:
            yield Problem((*at, name), reason)


def _name_reason(name: str) -> str | None:
    short = name.removeprefix("NCCL_")
    if short in REMOVED:
        return REMOVED[short]
    if name in KNOWN:
        return None
    near = difflib.get_close_matches(name, sorted(KNOWN), n=3, cutoff=0.75)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"not a variable that NCCL reads (it would ignore it without a word){hint}"


def _value_reason(short: str, value: str) -> str | None:
    if short in FUNCTION_LISTS:
        return _function_list_reason(value, FUNCTION_LISTS[short])
    if short in CHOICES:
        return _choice_reason(value, CHOICES[short])
    if short in LEVELS:
        return None if re.fullmatch(r"[0-9]{1,2}", value) else _choice_reason(value, DISTANCES)
    if short == "DEBUG_SUBSYS":
        names = value.removeprefix("^").split(",")
        return next(filter(None, (_choice_reason(name, SUBSYSTEMS) for name in names)), None)
    low, high = (0, 1) if short in SWITCHES.split() else INTEGERS.get(short, (None, None))
    if low is None or high is None:
        return None if value else "is empty"
    if not INTEGER.fullmatch(value):
        return f"{value!r}: a whole number from {low} to {high}"
    number = int(value, 0) if "x" in value.lower() else int(value)
    return None if low <= number <= high else f"{value}: from {low} to {high}"


def _choice_reason(value: str, choices: tuple[str, ...]) -> str | None:
    if value.lower() in {choice.lower() for choice in choices}:
        return None
    return f"{value!r}: one of {', '.join(choices)}"


def _function_list_reason(value: str, members: tuple[str, ...]) -> str | None:
    """Judge `LL,Simple`, `^LL128`, and since NCCL 2.24 `ring;allreduce:^tree,pat`.

    Source: NCCL user guide, NCCL_ALGO and NCCL_PROTO; src/graph/tuning.cc parseList.
    """
    for index, entry in enumerate(value.split(";")):
        function, colon, names = entry.rpartition(":")
        if (colon or index > 0) and function.lower() not in {known.lower() for known in FUNCTIONS}:
            return f"{value!r}: `{function or entry}` is no function; one of {', '.join(FUNCTIONS)}, then `:`"
        for name in names.removeprefix("^").split(","):
            if name.lower() not in {member.lower() for member in members}:
                return f"{value!r}: `{name}` is none of {', '.join(members)} (a list `A,B`, or `^A` to exclude)"
    return None
