"""How often the speed gate decides right, with the noise of the simulated engine.

If this fails, operators are refused a profile that is faster (and stay on the slow one), or are given one that is
slower and believe the gate. `python tests/unit/test_gate_power.py --write` puts the table into docs/gate.md.
"""

import random
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

from ops.bench import stats
from ops.bench.measure import strata_of
from ops.gates import baseline, prompt_set, speed
from ops.model.gate import Run
from ops.model.profile_parts import SpeedGate
from ops.sandbox.engine.sglang import physics

DOCUMENT = Path(__file__).parents[2] / "docs" / "gate.md"
BEGIN, END = "<!-- power: begin -->", "<!-- power: end -->"
POLICY = SpeedGate()


@dataclass(frozen=True)
class World:
    """How runs differ: the engine's own noise parameters."""

    name: str
    drift_per_run: float = 0.0
    autocorrelation: float = 0.0


STORY = World("story: one factor a run, sd 4 tok/s at 94")
HARD = World("drift -0.05 % a run, neighbours correlated 0.4", drift_per_run=-0.0005, autocorrelation=0.4)
UP = World("drift +0.05 % a run, neighbours correlated 0.4", drift_per_run=0.0005, autocorrelation=0.4)


@dataclass(frozen=True)
class Outcomes:
    admitted: float
    refused: float
    inconclusive: float
    mean_runs: float


def arm(world: World, seed: int, first: int, count: int, rate: float, concurrency: int) -> list[Run]:
    """Draw runs number `first`... of one server, as the engine would make them."""
    prompts = list(prompt_set.speed_prompts())
    runs = []
    for number in range(first, first + count):
        factor = physics.noise_factor(
            seed, number, drift_per_run=world.drift_per_run, autocorrelation=world.autocorrelation
        )
        spread = random.Random(f"ttft:{seed}:{number}").gauss(0.0, 1.0)
        prompt = prompts[(number - first) % len(prompts)] if concurrency == 1 else "mixed"
        runs.append(Run(rate_tok_s=rate * factor, ttft_ms=physics.ttft_ms(200, 0, spread), prompt=prompt))
    return runs


def decide(world: World, seed: int, truth: float, concurrency: int = 1) -> tuple[stats.Ruling, int]:
    """Make one decision the way the gate does: its own baseline arm, looks as planned."""
    base_rate = physics.decode_rate(0, concurrency=concurrency)
    yardstick = arm(world, seed, 1, baseline.RUNS, base_rate, concurrency)
    schedule = stats.plan(POLICY.max_runs, strata_of(concurrency, prompt_set.speed_prompts()))
    runs: list[Run] = []
    for count in schedule.looks:
        first = 1 + baseline.RUNS + len(runs)
        runs += arm(world, seed, first, count - len(runs), base_rate * truth, concurrency)
        result = speed.look(concurrency, runs, yardstick, schedule, POLICY.min_speedup, POLICY.max_ttft_ratio)
        if result.ruling is not stats.Ruling.OPEN:
            break
    return result.ruling, count


@cache
def outcomes(world: World, truth: float, decisions: int = 1000) -> Outcomes:
    # Correlated noise sums a dozen draws a run, the same ones again for the next run: remembered, not changed.
    with mock.patch.object(physics, "_standard", cache(physics._standard)):
        made = [decide(world, seed, truth) for seed in range(decisions)]
    share = {ruling: sum(r is ruling for r, _ in made) / decisions for ruling in stats.Ruling}
    return Outcomes(
        share[stats.Ruling.PASS],
        share[stats.Ruling.FAIL],
        share[stats.Ruling.OPEN],
        sum(count for _, count in made) / decisions,
    )


def ratio(steps: int) -> float:
    return physics.decode_rate(steps) / physics.decode_rate(0)


def test_a_truly_faster_profile_is_admitted_at_least_95_times_in_100() -> None:
    assert 0.055 < ratio(2) - 1 < 0.062
    assert outcomes(STORY, ratio(2)).admitted >= 0.95


def test_a_profile_that_gains_nothing_is_admitted_at_most_5_times_in_100() -> None:
    assert outcomes(STORY, 1.0).admitted <= 0.05


def test_a_profile_as_much_slower_as_the_good_one_is_faster_is_never_let_through() -> None:
    slower = outcomes(STORY, 1 / ratio(2))
    assert slower.admitted <= 0.01
    assert slower.refused >= 0.95


def test_five_steps_are_refused_whatever_the_noise_says() -> None:
    five = outcomes(STORY, ratio(5))
    assert ratio(5) < 1
    assert five.admitted <= 0.01


def test_the_document_shows_the_figures_of_this_code() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == table().strip()


def table() -> str:
    rows = [
        "| true ratio | noise | decisions | admitted | refused | inconclusive | runs (mean, at most "
        f"{stats.plan(POLICY.max_runs, 4).max_runs}) |",
        "|---|---|---|---|---|---|---|",
    ]
    cases = (
        (STORY, ratio(2), "2 steps", 1000),
        (STORY, 0.98 * ratio(2), "2 steps, 2 % slower", 1000),
        (STORY, 1.0, "no gain", 1000),
        (STORY, ratio(5), "5 steps", 1000),
        (STORY, 1 / ratio(2), "a loss as large", 1000),
        (HARD, ratio(2), "2 steps", 300),
        (HARD, 1.0, "no gain", 300),
        (HARD, 1 / ratio(2), "a loss as large", 300),
        (UP, 1.0, "no gain", 300),
    )
    for world, truth, name, decisions in cases:
        o = outcomes(world, truth, decisions)
        rows.append(
            f"| {truth:.3f} ({name}) | {world.name} | {decisions} | {o.admitted:.1%} | {o.refused:.1%} "
            f"| {o.inconclusive:.1%} | {o.mean_runs:.1f} |"
        )
    return "\n".join(rows) + "\n"


def test_noise_that_the_method_does_not_assume_is_shown_beside_it() -> None:
    print(table())
    hard = outcomes(HARD, 1.0, 300)
    assert hard.admitted <= 0.10, "drift and correlation must not turn nothing into a gain"


if __name__ == "__main__":
    print(table())
    if "--write" in sys.argv:
        text = DOCUMENT.read_text(encoding="utf-8")
        head, _, rest = text.partition(BEGIN)
        tail = rest.partition(END)[2]
        DOCUMENT.write_text(f"{head}{BEGIN}\n{table()}{END}{tail}", encoding="utf-8")
