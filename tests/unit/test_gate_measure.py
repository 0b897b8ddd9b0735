"""The speed check from its first request to its verdict, on a server made of values.

If these fail, an engine that does not flush its cache, a profile of many prompts, or a yardstick of other prompts ends
in a traceback (and a rollback) or in a pass that nothing proves.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from ops.bench import stats
from ops.bench.measure import NotCold
from ops.config.profiles import load_profile
from ops.errors import ConfigError
from ops.gates import baseline, speed
from ops.model.gate import BaselineKey, BaselineRecord, Completion, Generation, Learned, Run, Server, Stored
from ops.model.profile_parts import SpeedGate, first_look
from ops.model.verdict import Outcome, Verdict

PROJECT = Path(__file__).parents[2]
RATE = 100.0
TTFT_S = 0.2


class Engine:
    """Answers at 100 tok/s a user, a little faster and slower in turn; refuses to flush and knows every prompt it saw.

    Attributes:
        tells: whether `meta_info` holds the time to first token.
        warm: whether every prompt comes from the prefix cache.
    """

    def __init__(self, *, tells: bool = True, warm: bool = False, **changes: Any) -> None:
        self.profile = load_profile(PROJECT, "eagle3-2step", changes, environ={})
        self.manifest = {"release": "eagle3-2step-0", "stack_lock_sha256": "s"}
        self.stored = Stored()
        self.tells, self.warm = tells, warm
        self.batches: list[list[str]] = []
        self.known: set[str] = set()

    def say(self, text: str) -> None: ...

    def flush_cache(self, timeout_s: float = 30.0) -> bool:
        return False

    def batch(
        self, requests: Sequence[Generation], concurrency: int, timeout_s: float, *, stream: bool = False, **_: Any
    ) -> list[Completion]:
        self.batches.append([request.text for request in requests])
        factor = 1.01 if (len(self.batches) // 10) % 2 else 0.99
        return [self._answer(request, factor, stream) for request in requests]

    def _answer(self, request: Generation, factor: float, stream: bool) -> Completion:
        cached = 100 if self.warm or request.text in self.known else 0
        self.known.add(request.text)
        first = TTFT_S * factor
        return Completion(
            status=200,
            error="",
            text="text",
            output_ids=(1,),
            prompt_tokens=100,
            completion_tokens=request.tokens,
            cached_tokens=cached,
            finish_reason="length",
            started_s=0.0,
            first_token_s=first if stream else None,
            ended_s=first + (request.tokens - 1) / (RATE * factor),
            meta={"first_token_latency": first} if self.tells else {},
        )

    def against(self, runs: Mapping[int, Sequence[Run]]) -> Verdict:
        """Judge the engine's speed by a baseline of these runs."""
        key = BaselineKey(
            gpu_uuids=(),
            driver="",
            stack_lock_sha256="",
            target_sha256="",
            release="",
            prompt_set_sha256="",
            concurrency=(1,),
        )
        arms = {c: tuple(arm) for c, arm in runs.items()}
        self.stored = Stored(
            baseline=BaselineRecord(key=key, profile="baseline", measured_at="", runs=arms, reference_ids={})
        )
        return speed.judge(cast(Server, self), Learned())


def measured(engine: Engine, runs: int, concurrency: int = 1) -> list[Run]:
    return baseline.measured(cast(Server, engine), concurrency, runs)


def slower(prompts: Sequence[str], rate: float = 0.8 * RATE, ttft_ms: float | None = 200.0) -> list[Run]:
    """A baseline's arm that the engine beats."""
    rates = [rate * (1.01 if i // len(prompts) % 2 else 0.99) for i in range(baseline.RUNS)]
    return [Run(rate_tok_s=r, ttft_ms=ttft_ms, prompt=prompts[i % len(prompts)]) for i, r in enumerate(rates)]


def traffic(prompts: int, **more: Any) -> dict[str, Any]:
    return {"prompts": {f"p{i}": f"prompt number {i}" for i in range(prompts)}, "concurrency": [1], **more}


OWN = ("chat-1", "code-1", "data-1", "prose-1")


# a cache that cannot be flushed


@pytest.mark.parametrize("concurrency", [1, 8])
def test_an_engine_that_does_not_flush_is_measured_as_often_as_one_likes(concurrency: int) -> None:
    engine = Engine()
    for _ in range(5):
        assert len(measured(engine, 12, concurrency)) == 12
    assert len(engine.batches) == 60, "no run had to be repeated"
    lengths = {tuple(len(text) for text in batch) for batch in engine.batches}
    assert len(lengths) == (4 if concurrency == 1 else 1), "every run of a prompt is as long"


def test_a_cache_that_answers_all_the_same_is_inconclusive_and_no_failure() -> None:
    engine = Engine(warm=True)
    with pytest.raises(NotCold):
        measured(engine, 1)
    verdict = engine.against({1: slower(OWN), 8: slower(["mixed"])})
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "prefix cache" in verdict.message
    assert "SGLANG_ADMIN_API_KEY" in verdict.remedy


# how many runs


@pytest.mark.parametrize("prompts", [1, 2, 4, 5, 8, 10])
def test_speed_is_judged_with_every_number_of_prompts_and_the_default_runs(prompts: int) -> None:
    engine = Engine(traffic=traffic(prompts))
    verdict = engine.against({1: slower(sorted(traffic(prompts)["prompts"]))})
    assert verdict.passed, verdict.line()


@pytest.mark.parametrize(("prompts", "runs", "needed"), [(5, 14, 15), (8, 23, 24), (10, 29, 30)])
def test_fewer_runs_than_the_first_look_needs_are_refused_before_a_host_is_touched(
    prompts: int, runs: int, needed: int
) -> None:
    gates = {"speed": {"max_runs": runs}}
    with pytest.raises(ConfigError) as caught:
        Engine(traffic=traffic(prompts), gates=gates)
    assert f"after {needed} runs" in caught.value.message
    Engine(traffic=traffic(prompts), gates={"speed": {"max_runs": needed}})
    Engine(traffic=traffic(prompts, concurrency=[8]), gates=gates)


def test_the_default_grows_with_the_prompts_and_a_number_of_ones_own_does_not() -> None:
    assert [SpeedGate().runs(n) for n in (1, 4, 5, 8, 10)] == [24, 24, 24, 24, 30]
    assert SpeedGate(max_runs=12).runs(10) == 12
    assert [stats.plan(SpeedGate().runs(n), n).looks[0] for n in (1, 5, 10)] == [first_look(n) for n in (1, 5, 10)]


# a yardstick that is none


def test_a_baseline_of_other_prompts_is_inconclusive_in_its_own_words() -> None:
    verdict = Engine(traffic=traffic(4)).against({1: slower(OWN)})
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "different prompts" in verdict.message
    assert "traffic.prompts" in verdict.remedy


def test_a_baseline_with_a_rate_of_nothing_is_inconclusive() -> None:
    verdict = Engine(traffic={"concurrency": [1]}).against({1: slower(OWN, rate=0.0)})
    assert verdict.outcome is Outcome.INCONCLUSIVE


# times to first token that nobody tells


def test_a_version_that_tells_no_times_of_batches_is_judged_by_one_user_and_the_rest_is_said() -> None:
    engine = Engine(tells=False)
    alone, together = slower(OWN), slower(["mixed"], ttft_ms=None)
    verdict = engine.against({1: alone, 8: together})
    assert verdict.passed, verdict.line()
    assert verdict.message.count("time to first token not measured") == 1
    of_one, of_eight = verdict.evidence["concurrency"]  # type: ignore[misc]
    assert (of_one["ttft_ruling"], of_eight["ttft_ruling"]) == ("pass", "not measured")  # type: ignore[index]
    assert of_eight["ttft_ratio"] is None  # type: ignore[index]


def test_a_later_first_token_fails_with_one_user_whatever_the_version_tells() -> None:
    verdict = Engine(tells=False).against({1: slower(OWN, ttft_ms=100.0), 8: slower(["mixed"], ttft_ms=None)})
    assert verdict.outcome is Outcome.FAIL
    assert "first token" in verdict.message


@pytest.mark.parametrize(
    ("tells", "ttft_ms", "where"),
    [(True, None, "not measured in the baseline"), (False, 200.0, "not measured in these")],
)
def test_times_that_one_arm_alone_knows_prove_nothing(tells: bool, ttft_ms: float | None, where: str) -> None:
    engine = Engine(tells=tells, traffic={"concurrency": [8]})
    verdict = engine.against({8: slower(["mixed"], ttft_ms=ttft_ms)})
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert where in verdict.message
    assert "enable_metrics" in verdict.remedy
    assert len(engine.batches) == 1 + first_look(1), "more runs would not tell the times"
