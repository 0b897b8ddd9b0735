"""The speed check, the stored baseline it needs, and the order in which the gate asks.

If these fail, a profile that is slower than the baseline is admitted, a stale yardstick is used without a word, or a
failure is reported under the wrong name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from ops.bench import stats
from ops.config.profiles import load_profile
from ops.gates import all_gates, baseline, prompt_set, speed
from ops.gates.runner import run_gate
from ops.hosts.clock import HostClock
from ops.model.gate import BaselineKey, BaselineRecord, Gate, Learned, Run, Server, Stored, Subset
from ops.model.profile import Profile
from ops.model.profile_parts import CHECKS, SpeedGate
from ops.model.verdict import Outcome, Question, Verdict, combine, not_passed

PROJECT = Path(__file__).parents[2]
SCHEDULE = stats.plan(24, 4)


def arm(rate: float, count: int, ttft_ms: float | None = 180.0, wobble: float = 0.01) -> list[Run]:
    """Make runs whose mean is `rate` exactly, alternating around it."""
    prompts = list(prompt_set.speed_prompts())
    signs = [1 if (i // len(prompts)) % 2 == 0 else -1 for i in range(count)]
    return [
        Run(
            rate_tok_s=rate * (1 + wobble * sign),
            ttft_ms=None if ttft_ms is None else ttft_ms * (1 + 0.05 * sign),
            prompt=prompts[i % len(prompts)],
        )
        for i, sign in enumerate(signs)
    ]


def looked(runs: Sequence[Run], threshold: float = 1.0, yardstick: Sequence[Run] | None = None) -> speed.Compared:
    base = yardstick if yardstick is not None else arm(88.8, 40)
    return speed.look(1, runs, base, SCHEDULE, threshold, SpeedGate().max_ttft_ratio)


# the table of the story


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (94.0, Outcome.PASS),
        (94.0 * 0.98, Outcome.PASS),
        (86.7, Outcome.FAIL),
        (85.1, Outcome.FAIL),
        (71.3, Outcome.FAIL),
        (94.0 * 0.8, Outcome.FAIL),
        (88.9, Outcome.INCONCLUSIVE),
    ],
)
def test_the_storys_profiles_are_judged_as_in_the_story(rate: float, expected: Outcome) -> None:
    assert speed.ruling([looked(arm(rate, 24))], []).outcome is expected


def test_a_baseline_that_repeats_itself_is_not_inferior_to_itself() -> None:
    assert speed.ruling([looked(arm(88.0, 12), threshold=0.95)], []).passed
    assert speed.ruling([looked(arm(80.0, 12), threshold=0.95)], []).outcome is Outcome.FAIL


def test_a_late_first_token_fails_although_the_rate_is_fine() -> None:
    verdict = speed.ruling([looked(arm(94.0, 12, ttft_ms=288.0))], [])
    assert verdict.outcome is Outcome.FAIL
    assert "first token" in verdict.message


def test_times_to_first_token_that_one_user_did_not_see_are_no_pass() -> None:
    result = looked(arm(94.0, 12, ttft_ms=None), yardstick=arm(88.8, 40, ttft_ms=None))
    verdict = speed.ruling([result], [])
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "time to first token not measured" in verdict.message
    assert (speed.figures(result)["ttft_ratio"], speed.figures(result)["ttft_ruling"]) == (None, "not measured")


def test_each_concurrency_must_pass_by_itself() -> None:
    wins, loses = looked(arm(94.0, 12)), looked(arm(80.0, 12))
    assert speed.ruling([wins, loses], []).outcome is Outcome.FAIL
    assert speed.ruling([wins, wins], []).passed


# the stored baseline

KEY = BaselineKey(
    gpu_uuids=("GPU-1", "GPU-2"),
    driver="575.1",
    stack_lock_sha256="s" * 64,
    target_sha256="t" * 64,
    release="baseline-1",
    prompt_set_sha256=baseline.prompt_set_digest(),
    concurrency=(1, 8),
)
RECORD = BaselineRecord(
    key=KEY,
    profile="baseline",
    measured_at="2026-01-01T00:00:00+00:00",
    runs={1: tuple(arm(88.8, 40)), 8: tuple(arm(350.0, 40))},
    reference_ids={"prose-1": (1, 2, 3)},
)


def test_an_unchanged_host_has_a_valid_baseline_also_for_fewer_users() -> None:
    assert baseline.problem(RECORD, KEY) == ""
    assert baseline.problem(RECORD, KEY.model_copy(update={"concurrency": (8,)})) == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpu_uuids", ("GPU-1", "GPU-9")),
        ("driver", "580.0"),
        ("stack_lock_sha256", "x" * 64),
        ("target_sha256", "x" * 64),
        ("release", "baseline-2"),
        ("prompt_set_sha256", "x" * 64),
    ],
)
def test_a_changed_key_invalidates_the_baseline_and_is_named(name: str, value: object) -> None:
    assert baseline.problem(RECORD, KEY.model_copy(update={name: value})).startswith(f"{name} changed")


def test_a_concurrency_that_was_never_measured_is_named() -> None:
    assert "concurrency 16" in baseline.problem(RECORD, KEY.model_copy(update={"concurrency": (1, 16)}))
    short = RECORD.model_copy(update={"runs": {**RECORD.runs, 8: RECORD.runs[8][:39]}})
    assert "concurrency 8" in baseline.problem(short, KEY)
    assert "never measured" in baseline.problem(None, KEY)


def test_the_record_survives_the_way_to_the_host_and_back() -> None:
    assert baseline.from_json(baseline.to_json(RECORD)) == RECORD


def test_the_key_follows_gpus_driver_and_target() -> None:
    seen = {
        "gpus": {"devices": [{"uuid": "GPU-2", "driver": "575.1"}, {"uuid": "GPU-1", "driver": "575.1"}]},
        "models": {"target": {"config_sha256": "t" * 64, "weights_sha256": None}},
    }
    found = baseline.key(seen, {"stack_lock_sha256": "s" * 64}, "baseline-1", [8, 1])
    assert found == KEY


# the order of questions


@dataclass
class Bare:
    """The part of a server that the runner itself uses."""

    profile: Profile
    clock: HostClock = field(default_factory=lambda: HostClock(1000.0))
    stored: Stored = field(default_factory=Stored)
    said: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)


def bare(skip: dict[str, str] | None = None) -> Bare:
    profile = load_profile(PROJECT, "eagle3-2step", {"gates": {"skip": skip or {}}}, environ={})
    return Bare(profile)


def saying(name: str, order: int, outcome: Outcome, asked: list[str], **options: Any) -> Gate:
    question = Question(name, f"{name}?")
    answers: dict[Outcome, Callable[[], Verdict]] = {
        Outcome.PASS: lambda: question.passed("fine"),
        Outcome.FAIL: lambda: question.failed("broken", "mend it"),
        Outcome.INCONCLUSIVE: lambda: question.inconclusive("unclear", "look"),
        Outcome.SKIPPED: lambda: question.skipped("does not apply"),
    }

    def judge(server: Server, learned: Learned) -> Verdict:
        asked.append(name)
        return answers[outcome]()

    return Gate(name, question.question, order, judge, **options)


def test_every_named_check_exists_and_cheap_ones_come_first() -> None:
    gates = all_gates()
    assert tuple(gate.name for gate in gates) == CHECKS
    assert [gate.costly for gate in gates] == sorted(gate.costly for gate in gates)


def test_a_rollback_is_asked_up_to_acceptance_and_its_speed_is_only_reported() -> None:
    asked = [gate.name for gate in all_gates() if gate.on_rollback]
    assert asked == [name for name in CHECKS if name not in ("long-context", "soak")]


def test_what_needs_a_failed_answer_is_not_asked_and_the_first_failure_is_named() -> None:
    asked: list[str] = []
    gates = [
        saying("alive", 1, Outcome.PASS, asked),
        saying("itself", 2, Outcome.FAIL, asked, needs=("alive",)),
        saying("health", 3, Outcome.PASS, asked, needs=("itself",)),
        saying("generation", 4, Outcome.PASS, asked, needs=("health",)),
        saying("wiring", 5, Outcome.FAIL, asked, needs=("alive",)),
        saying("soak", 6, Outcome.PASS, asked, needs=("alive",), costly=True),
    ]
    report = run_gate(cast(Server, bare()), gates=gates)
    assert asked == ["alive", "itself", "wiring"]
    assert report.outcome is Outcome.FAIL
    assert report.first_problem is not None
    assert report.first_problem.name == "itself"
    assert [v.outcome for v in report.verdicts if v.name in ("health", "generation", "soak")] == [Outcome.SKIPPED] * 3


def test_a_check_that_does_not_apply_stops_nothing() -> None:
    asked: list[str] = []
    gates = [
        saying("generation", 1, Outcome.SKIPPED, asked),
        saying("speed", 2, Outcome.PASS, asked, needs=("generation",), costly=True),
    ]
    assert run_gate(cast(Server, bare()), gates=gates).outcome is Outcome.PASS
    assert asked == ["generation", "speed"]


def test_a_check_left_out_keeps_its_written_reason_in_the_report() -> None:
    asked: list[str] = []
    server = bare({"soak": "measured by the load test of the week"})
    gates = [saying("alive", 1, Outcome.PASS, asked), saying("soak", 2, Outcome.FAIL, asked)]
    report = run_gate(cast(Server, server), gates=gates, today=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    assert asked == ["alive"]
    assert report.outcome is Outcome.PASS
    assert any("load test of the week" in note for note in report.notes)
    assert report.started_at == "2026-01-01T00:00:00+00:00"


def test_a_rollback_leaves_out_what_is_not_for_it() -> None:
    asked: list[str] = []
    gates = [saying("alive", 1, Outcome.PASS, asked), saying("soak", 2, Outcome.FAIL, asked, on_rollback=False)]
    assert run_gate(cast(Server, bare()), Subset.ROLLBACK, gates=gates).outcome is Outcome.PASS


# verdicts


def test_inconclusive_and_nothing_are_never_a_pass() -> None:
    ask = Question("x", "x?")
    assert combine([]) is Outcome.INCONCLUSIVE
    assert combine([ask.skipped("no")]) is Outcome.INCONCLUSIVE
    assert combine([ask.passed(), ask.inconclusive("?", "look")]) is Outcome.INCONCLUSIVE
    assert combine([ask.inconclusive("?", "look"), ask.failed("!", "mend")]) is Outcome.FAIL
    problems = not_passed([ask.inconclusive("?", "look"), ask.failed("!", "mend"), ask.passed()])
    assert [p.outcome for p in problems] == [Outcome.FAIL, Outcome.INCONCLUSIVE]


def test_a_failure_without_a_remedy_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="remedy"):
        Verdict(name="x", question="x?", outcome=Outcome.FAIL, message="broken")


def test_prompts_differ_in_kind_and_the_long_one_does_not_repeat_itself() -> None:
    assert {name.split("-")[0] for name in prompt_set.all_prompts()} == {"prose", "code", "chat", "data", "long"}
    assert len(prompt_set.speed_prompts()) == 4
    assert baseline.RUNS % len(prompt_set.speed_prompts()) == 0
    sections = prompt_set.long_text(20_000).split("\n\n")
    assert len(sections) == len(set(sections))
