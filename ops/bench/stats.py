"""Is it faster? A candidate's runs against a stored baseline arm, looked at several times, honestly.

Pure: no I/O, no clock. The method and its measured error rates are in docs/gate.md.

The quantity is the ratio of mean rates. Its confidence interval is built on the log scale (delta method, Welch's
degrees of freedom, sd estimated), and looking k times costs alpha/k a look (Boole), so that *all* intervals of one
decision hold together with 95 %: stopping when one says yes does not inflate the error. Boole's bound is a little
wider than a group-sequential boundary, but it needs no joint distribution, so it stays valid with the sd unknown,
with unequal variances, and with one baseline arm shared by all looks.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ops.bench.student import t_quantile
from ops.model.profile_parts import first_look

ERROR = 0.05


class NotComparable(ValueError):
    """These runs prove nothing about each other, or are too few; says why."""


class Ruling(StrEnum):
    """What the interval says about a threshold."""

    PASS = "pass"
    FAIL = "fail"
    OPEN = "open"


@dataclass(frozen=True)
class Sample:
    """Measured runs: their values, and the stratum (prompt) of each.

    Prompts differ in speed by more than runs of one prompt do, so spread is taken within strata; both samples of a
    comparison must hold the strata in the same proportions.
    """

    values: tuple[float, ...]
    strata: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.strata):
            raise ValueError(f"{len(self.values)} values but {len(self.strata)} strata")
        if any(not value > 0 for value in self.values):
            raise NotComparable("a rate or a time must be above 0")

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / self.n

    @property
    def df(self) -> int:
        return self.n - len(set(self.strata))

    @property
    def variance(self) -> float:
        """Variance of one run within its stratum, pooled over strata."""
        groups: dict[str, list[float]] = defaultdict(list)
        for value, stratum in zip(self.values, self.strata, strict=True):
            groups[stratum].append(value)
        squares = 0.0
        for group in groups.values():
            middle = math.fsum(group) / len(group)
            squares += math.fsum((value - middle) ** 2 for value in group)
        return squares / self.df

    def proportions(self) -> dict[str, float]:
        return {stratum: self.strata.count(stratum) / self.n for stratum in sorted(set(self.strata))}


@dataclass(frozen=True)
class Interval:
    """A ratio of means with its confidence interval; `error` is the chance that the interval misses."""

    ratio: float
    low: float
    high: float
    error: float

    def ruling(self, threshold: float) -> Ruling:
        """Rule for "at least `threshold`": pass when the whole interval is, fail when none of it is."""
        if self.low >= threshold:
            return Ruling.PASS
        return Ruling.FAIL if self.high < threshold else Ruling.OPEN

    def inverse(self) -> "Interval":
        """Return the interval of 1/ratio, for "at most" questions."""
        return Interval(1 / self.ratio, 1 / self.high, 1 / self.low, self.error)


@dataclass(frozen=True)
class Plan:
    """When to look: after how many candidate runs. Each look spends an equal part of the 5 %."""

    looks: tuple[int, ...]
    error: float = ERROR

    def __post_init__(self) -> None:
        if not self.looks or list(self.looks) != sorted(set(self.looks)) or self.looks[0] < 2:
            raise ValueError(f"looks must be ascending run counts of at least 2, not {self.looks}")

    @property
    def error_per_look(self) -> float:
        return self.error / len(self.looks)

    @property
    def max_runs(self) -> int:
        return self.looks[-1]


def plan(max_runs: int, strata: int) -> Plan:
    """Return the looks for at most `max_runs` runs over `strata` prompts: complete rounds of prompts only.

    The first look comes after 12 runs (rounded up to complete rounds, and at least three rounds of prompts, so that
    there is a spread to estimate), then after every four runs or every round, whichever is more.

    Raises: NotComparable when `max_runs` leaves no look.
    """
    start = first_look(strata)
    step = strata * math.ceil(4 / strata)
    looks = tuple(range(start, max_runs + 1, step))
    if not looks:
        raise NotComparable(f"max_runs {max_runs} is too few: the first look is after {start} runs")
    return Plan(looks)


def ratio_interval(candidate: Sample, baseline: Sample, error: float) -> Interval:
    """Return mean(candidate) / mean(baseline) with an interval that misses with probability `error`.

    Raises: NotComparable when a sample has no spread to estimate, or the samples hold different mixes of strata.
    Source: delta method for log(mean); B. L. Welch, Biometrika 34 (1947), for the degrees of freedom.
    """
    if candidate.df < 2 or baseline.df < 2:
        raise NotComparable(f"too few runs: {candidate.n} and {baseline.n}")
    if not _same_mix(candidate, baseline):
        raise NotComparable(f"different prompts: {candidate.proportions()} against {baseline.proportions()}")
    shares = [sample.variance / sample.n / sample.mean**2 for sample in (candidate, baseline)]
    variance = math.fsum(shares)
    log_ratio = math.log(candidate.mean / baseline.mean)
    reach = 0.0
    if variance > 0:
        df = variance**2 / math.fsum(
            share**2 / sample.df for share, sample in zip(shares, (candidate, baseline), strict=True)
        )
        reach = t_quantile(1 - error / 2, round(df, 1)) * math.sqrt(variance)
    return Interval(math.exp(log_ratio), math.exp(log_ratio - reach), math.exp(log_ratio + reach), error)


def look(candidate: Sample, baseline: Sample, schedule: Plan) -> Interval:
    """Return the interval of one of the schedule's looks.

    Raises: ValueError when the candidate's run count is not one of the looks: an unplanned look is not paid for;
    NotComparable.
    """
    if candidate.n not in schedule.looks:
        raise ValueError(f"no look is planned after {candidate.n} runs, only after {schedule.looks}")
    return ratio_interval(candidate, baseline, schedule.error_per_look)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return n, mean, sd, min and max, for people to read."""
    n = len(values)
    mean = math.fsum(values) / n
    sd = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1)) if n > 1 else 0.0
    return {
        "n": n,
        "mean": round(mean, 3),
        "sd": round(sd, 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def _same_mix(a: Sample, b: Sample) -> bool:
    mix_a, mix_b = a.proportions(), b.proportions()
    return mix_a.keys() == mix_b.keys() and all(abs(mix_a[s] - mix_b[s]) < 1e-9 for s in mix_a)
