"""Is it not slower than the non-speculative baseline of this host, at every concurrency it is meant for?

The method, its error rates and the number of runs are in docs/gate.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.bench import stats
from ops.bench.measure import NotCold, RunFailed, rates, strata_of, times_to_first_token
from ops.gates import baseline, prompt_set, wanted
from ops.model.gate import Gate, Learned, Run, Server, Subset
from ops.model.verdict import Question, Verdict

ASK = Question("speed", "Is it as fast as the stored baseline of this host demands, at each concurrency?")
REPORTED_RUNS = 2
DRIFT_WORTH_SAYING = 0.01
UNTOLD = "(this engine does not tell it of batches)"


@dataclass(frozen=True)
class Compared:
    """One concurrency's comparison after some look.

    Attributes:
        ttft: None where an arm does not know its times to first token; `ttft_gap` says which.
        ttft_ruling: None where nothing is judged because the engine tells it in neither arm.
    """

    concurrency: int
    runs: int
    rate_tok_s: float
    baseline_tok_s: float
    speed: stats.Interval
    speed_ruling: stats.Ruling
    ttft: stats.Interval | None
    ttft_ruling: stats.Ruling | None
    threshold: float
    ttft_gap: str = ""

    @property
    def ruling(self) -> stats.Ruling:
        both = {self.speed_ruling, self.ttft_ruling}
        if stats.Ruling.FAIL in both:
            return stats.Ruling.FAIL
        return stats.Ruling.OPEN if stats.Ruling.OPEN in both else stats.Ruling.PASS

    @property
    def settled(self) -> bool:
        """Whether further runs would change nothing: ruled, or only times are missing that nobody tells."""
        return self.ruling is not stats.Ruling.OPEN or self.only_ttft_missing

    @property
    def only_ttft_missing(self) -> bool:
        return self.speed_ruling is stats.Ruling.PASS and self.ttft is None and self.ttft_ruling is stats.Ruling.OPEN

    def words(self) -> str:
        speed = self.speed
        text = (
            f"{_users(self.concurrency)}: {self.rate_tok_s:.1f} tok/s against {self.baseline_tok_s:.1f}, "
            f"ratio {speed.ratio:.3f} (95 %: {speed.low:.3f} to {speed.high:.3f}, n={self.runs})"
        )
        if self.ttft is None:
            text += f", time to first token not measured {self.ttft_gap}"
        elif self.ttft_ruling is not stats.Ruling.PASS:
            text += f", time to first token x {self.ttft.ratio:.2f} ({self.ttft.low:.2f} to {self.ttft.high:.2f})"
        return text


def judge(server: Server, learned: Learned) -> Verdict:
    try:
        if learned.subset is Subset.ROLLBACK:
            return _reported(server, learned)
        record = server.stored.baseline
        if record is None and server.profile.speculative:
            why = server.stored.baseline_problem or "the baseline was never measured on this host"
            return ASK.inconclusive(
                f"no yardstick: {why}",
                "deploy the baseline profile on this host, or pass --assume-baseline FILE",
            )
        if record is None:
            return _first_measurement(server, learned)
        verdict = _against(server, learned, record.runs)
    except NotCold as error:
        return ASK.inconclusive(
            str(error),
            "let ops flush the engine's cache: name the engine's key in the profile's `secrets` (SGLANG_ADMIN_API_KEY)",
        )
    except stats.NotComparable as error:
        return ASK.inconclusive(
            f"the stored baseline is no yardstick for these runs: {error}",
            "deploy the baseline profile with the same traffic.prompts on this host, or pass --assume-baseline a FILE "
            "measured with them",
        )
    except (RunFailed, baseline.NotMeasured) as error:
        return ASK.failed(f"a measured request failed: {error}", "`ops logs`, then `ops gate`")
    return verdict


def _against(server: Server, learned: Learned, arms: Mapping[int, Sequence[Run]]) -> Verdict:
    compared: list[Compared] = []
    drifts: list[str] = []
    for concurrency in server.profile.traffic.concurrency:
        arm = arms.get(concurrency, ())
        if len(arm) < baseline.RUNS:
            return ASK.inconclusive(
                f"the stored baseline has {len(arm)} runs at concurrency {concurrency}, {baseline.RUNS} are needed",
                "deploy the baseline profile on this host: it is measured anew",
            )
        result = compare(server, concurrency, arm)
        compared.append(result)
        drifts += drift(server, learned, result)
        if result.ruling is stats.Ruling.FAIL:
            break
    learned.figures["speed"] = [figures(c) for c in compared]
    return ruling(compared, drifts)


def compare(server: Server, concurrency: int, arm: Sequence[Run]) -> Compared:
    """Measure until the interval has ruled or the runs are used up. Raises: RunFailed, NotCold, NotComparable."""
    policy = server.profile.gates.speed
    threshold = policy.min_speedup if server.profile.speculative else policy.min_ratio
    prompts = prompt_set.speed_prompts(server.profile.traffic.prompts)
    strata = strata_of(concurrency, prompts)
    schedule = stats.plan(policy.runs(strata), strata)
    baseline.measured(server, concurrency, 1)  # warm-up, not counted
    runs: list[Run] = []
    for count in schedule.looks:
        server.say(f"speed with {_users(concurrency)}: runs {len(runs) + 1} to {count} (at most {schedule.max_runs})")
        runs += baseline.measured(server, concurrency, count - len(runs), first=len(runs))
        result = look(concurrency, runs, arm, schedule, threshold, policy.max_ttft_ratio)
        server.say(result.words())
        if result.settled:
            break
    return result


def look(
    concurrency: int,
    runs: Sequence[Run],
    arm: Sequence[Run],
    schedule: stats.Plan,
    threshold: float,
    max_ttft_ratio: float,
) -> Compared:
    """Compare the runs so far with the baseline's arm: rate at least, time to first token at most. Pure.

    A single user's answer is streamed, so its time is always seen; of a batch only the engine tells it, and some
    versions do not (`first_token_latency` of `ops.engine.versions`). Raises: NotComparable.
    """
    candidate, yardstick = rates(runs), rates(arm)
    speed = stats.look(candidate, yardstick, schedule)
    ttft: stats.Interval | None = None
    ttft_ruling: stats.Ruling | None = stats.Ruling.OPEN
    gap = _ttft_gap(concurrency, runs, arm)
    if gap == UNTOLD:
        ttft_ruling = None
    elif not gap:
        ttft = stats.look(times_to_first_token(runs), times_to_first_token(arm), schedule)
        ttft_ruling = ttft.inverse().ruling(1 / max_ttft_ratio)
    return Compared(
        concurrency=concurrency,
        runs=len(runs),
        rate_tok_s=candidate.mean,
        baseline_tok_s=yardstick.mean,
        speed=speed,
        speed_ruling=speed.ruling(threshold),
        ttft=ttft,
        ttft_ruling=ttft_ruling,
        threshold=threshold,
        ttft_gap=gap,
    )


def _ttft_gap(concurrency: int, runs: Sequence[Run], arm: Sequence[Run]) -> str:
    """Say where times to first token are missing; empty when both arms know theirs."""
    if concurrency > 1 and all(run.ttft_ms is None for run in (*runs, *arm)):
        return UNTOLD
    if any(run.ttft_ms is None for run in runs):
        return "in these runs"
    return "in the baseline" if any(run.ttft_ms is None for run in arm) else ""


def ruling(compared: Sequence[Compared], drifts: Sequence[str]) -> Verdict:
    """Rule over all concurrencies: each must pass by itself."""
    evidence: dict[str, Any] = {"concurrency": [figures(c) for c in compared], "drift": list(drifts)}
    for result in compared:
        if result.ruling is stats.Ruling.FAIL:
            slow = result.speed_ruling is stats.Ruling.FAIL
            what = f"slower than {result.threshold:g} x the baseline" if slow else "later first token than allowed"
            return ASK.failed(
                f"{what} with {result.words()}",
                "fewer steps, another NCCL set, or the fallback profile",
                **evidence,
            )
    for result in compared:
        if result.only_ttft_missing:
            return ASK.inconclusive(
                result.words(),
                "engine.enable_metrics: true in this profile and the baseline's makes the engine tell it; then remove "
                "baseline.json from the instance's folder on the host and deploy the baseline",
                **evidence,
            )
        if result.ruling is stats.Ruling.OPEN:
            return ASK.inconclusive(
                f"not proven within {result.runs} runs: {result.words()}, {result.threshold:g} wanted",
                "look for other load or throttling on the host, raise gates.speed.max_runs, or accept the fallback",
                **evidence,
            )
    return ASK.passed("; ".join([*(c.words() for c in compared), *drifts]), **evidence)


def drift(server: Server, learned: Learned, result: Compared) -> list[str]:
    """Say how the rate moved since this profile was first good here; remember it when it was not known."""
    name = f"speed/{wanted.stack_digest(server.manifest)}/{wanted.release(server)}"
    key = f"{name}/{result.concurrency}"
    before = server.stored.expectations.get(key)
    if not isinstance(before, int | float):
        learned.expectations[key] = round(result.rate_tok_s, 2)
        return []
    change = result.rate_tok_s / before - 1
    if abs(change) < DRIFT_WORTH_SAYING:
        return []
    words = f"{abs(change):.1%} {'slower' if change < 0 else 'faster'} than when first good ({before:.1f} tok/s)"
    learned.notes.append(f"{_users(result.concurrency)}: {words}")
    return [words]


def figures(result: Compared) -> dict[str, Any]:
    """Return a comparison as JSON."""
    ttft = result.ttft
    return {
        "concurrency": result.concurrency,
        "runs": result.runs,
        "tok_s": round(result.rate_tok_s, 2),
        "baseline_tok_s": round(result.baseline_tok_s, 2),
        "ratio": round(result.speed.ratio, 4),
        "low": round(result.speed.low, 4),
        "high": round(result.speed.high, 4),
        "wanted": result.threshold,
        "ruling": result.speed_ruling.value,
        "ttft_ratio": None if ttft is None else [round(x, 3) for x in (ttft.ratio, ttft.low, ttft.high)],
        "ttft_ruling": result.ttft_ruling.value if ttft is not None and result.ttft_ruling else "not measured",
    }


def _first_measurement(server: Server, learned: Learned) -> Verdict:
    concurrency = server.profile.traffic.concurrency
    key = baseline.key(server.facts(), server.manifest, wanted.release(server), concurrency)
    record = baseline.measure_baseline(server, key, greedy=learned.greedy)
    learned.baseline = record
    shown = {c: stats.summary([run.rate_tok_s for run in runs]) for c, runs in record.runs.items()}
    learned.figures["baseline"] = {str(c): dict(figure) for c, figure in shown.items()}
    words = "; ".join(f"{_users(c)}: {s['mean']:.1f} tok/s (sd {s['sd']:.1f}, n={s['n']})" for c, s in shown.items())
    return ASK.passed(f"first measurement of this baseline, stored: {words}", baseline=learned.figures["baseline"])


def _reported(server: Server, learned: Learned) -> Verdict:
    concurrency = min(server.profile.traffic.concurrency)
    rate = rates(baseline.measured(server, concurrency, REPORTED_RUNS)).mean
    learned.figures["speed"] = [{"concurrency": concurrency, "runs": REPORTED_RUNS, "tok_s": round(rate, 2)}]
    return ASK.skipped(
        f"only reported on a rollback: {rate:.1f} tok/s with {_users(concurrency)}", tok_s=round(rate, 2)
    )


def _users(concurrency: int) -> str:
    return "1 user" if concurrency == 1 else f"{concurrency} users"


GATE = Gate(ASK.name, ASK.question, 120, judge, needs=("generation",), costly=True)
