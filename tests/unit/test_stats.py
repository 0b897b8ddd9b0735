"""The statistics under the speed gate.

If these fail, the interval that the gate prints is not the 95 % interval it claims to be, and every decision about
speed is a guess.
"""

import math
import random

import pytest
from scipy import stats as scipy_stats

from ops.bench import stats
from ops.bench.stats import Interval, Ruling, Sample
from ops.bench.student import t_cdf, t_quantile


def sample(values: list[float], strata: int = 1) -> Sample:
    return Sample(tuple(values), tuple(str(i % strata) for i in range(len(values))))


@pytest.mark.parametrize("df", [2, 3.7, 8, 13.5, 36, 120.4])
@pytest.mark.parametrize("p", [0.005, 0.2, 0.5, 0.9, 0.975, 0.99375])
def test_quantiles_agree_with_scipy(p: float, df: float) -> None:
    distribution = scipy_stats.t(df)
    assert t_quantile(p, df) == pytest.approx(distribution.ppf(p), rel=1e-6, abs=1e-6)
    assert t_cdf(distribution.ppf(p), df) == pytest.approx(p, abs=1e-9)


def test_the_printed_tables_of_student_are_met() -> None:
    assert t_quantile(0.975, 10) == pytest.approx(2.2281, abs=1e-4)
    assert t_quantile(0.995, 30) == pytest.approx(2.7500, abs=1e-4)


def test_a_quantile_outside_0_and_1_is_an_error() -> None:
    with pytest.raises(ValueError, match="no t quantile"):
        t_quantile(1.0, 10)


def test_the_interval_of_two_arms_without_strata_is_welchs_on_the_log_scale() -> None:
    generator = random.Random(5)
    a = [94 + generator.gauss(0, 1) for _ in range(12)]
    b = [88.8 + generator.gauss(0, 2) for _ in range(40)]
    found = stats.ratio_interval(sample(a), sample(b), 0.05)
    logs = scipy_stats.ttest_ind([math.log(x) for x in a], [math.log(x) for x in b], equal_var=False)
    reference = logs.confidence_interval(0.95)
    assert found.low == pytest.approx(math.exp(reference.low), abs=5e-4)
    assert found.high == pytest.approx(math.exp(reference.high), abs=5e-4)


def test_prompts_that_differ_do_not_widen_the_interval() -> None:
    generator = random.Random(1)
    speeds = (60.0, 90.0, 120.0, 150.0)
    a = [speeds[i % 4] * (1 + generator.gauss(0, 0.01)) for i in range(24)]
    b = [speeds[i % 4] / 1.05 * (1 + generator.gauss(0, 0.01)) for i in range(40)]
    within = stats.ratio_interval(sample(a, 4), sample(b, 4), 0.05)
    ignored = stats.ratio_interval(sample(a, 1), sample(b, 1), 0.05)
    assert within.high - within.low < 0.02 < 0.3 < ignored.high - ignored.low


def test_arms_with_different_mixes_of_prompts_are_not_compared() -> None:
    with pytest.raises(ValueError, match="different prompts"):
        stats.ratio_interval(sample([1.0] * 12, 4), sample([1.0] * 12, 3), 0.05)


def test_runs_without_any_spread_give_an_interval_of_one_point() -> None:
    found = stats.ratio_interval(sample([94.0] * 12, 4), sample([88.8] * 40, 4), 0.05)
    assert found.low == found.high == pytest.approx(94 / 88.8)
    assert found.ruling(1.0) is Ruling.PASS


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1.0, 1.1, Ruling.PASS), (0.99, 1.1, Ruling.OPEN), (0.9, 1.0, Ruling.OPEN), (0.9, 0.999, Ruling.FAIL)],
)
def test_only_a_whole_interval_on_one_side_rules(low: float, high: float, expected: Ruling) -> None:
    assert Interval(1.0, low, high, 0.05).ruling(1.0) is expected


def test_the_looks_of_a_plan_are_complete_rounds_and_share_the_error() -> None:
    plan = stats.plan(24, strata=4)
    assert plan.looks == (12, 16, 20, 24)
    assert plan.error_per_look * len(plan.looks) == pytest.approx(0.05)
    assert stats.plan(24, strata=5).looks == (15, 20)


def test_a_plan_without_a_look_is_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        stats.plan(10, strata=4)


def test_an_unplanned_look_is_refused_because_it_is_not_paid_for() -> None:
    arm = sample([1.0, 1.1] * 20)
    with pytest.raises(ValueError, match="no look is planned"):
        stats.look(sample([1.0, 1.1] * 7), arm, stats.plan(24, 1))


def test_all_looks_together_miss_the_truth_at_most_5_times_in_100() -> None:
    generator = random.Random(11)
    plan = stats.plan(24, strata=4)
    missed = 0
    for _ in range(1000):
        arm = sample([100 * (1 + generator.gauss(0, 0.05)) for _ in range(40)], 4)
        runs = [103 * (1 + generator.gauss(0, 0.05)) for _ in range(24)]
        intervals = [stats.look(sample(runs[:n], 4), arm, plan) for n in plan.looks]
        missed += any(not i.low <= 1.03 <= i.high for i in intervals)
    assert missed <= 50
    assert missed >= 10, "an interval that never misses is too wide to decide with"


def test_a_rate_of_zero_is_an_error_and_not_a_measurement() -> None:
    with pytest.raises(ValueError, match="above 0"):
        sample([1.0, 0.0])
