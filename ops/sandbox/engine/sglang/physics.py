"""How fast the simulated server decodes, and what varies from run to run.  Pure: numbers in, numbers out.

The model fits the table in the project's design (Kimi-K2.5 INT4, 8 x RTX PRO 6000 on PCIe): a verify cycle costs
15.64 ms plus 1.01 ms for each verified token, a plain decode 11.26 ms, and every target forward 4.67 ms more when
the all-reduce is not tuned. Figures at 8 users, the cost of a long context and everything under "noise models"
beyond one factor a run are invented and only have to be plausible.
"""

import math
import random
from collections.abc import Mapping, Sequence

PLAIN_DECODE_MS = 11.26
CYCLE_FIXED_MS = 15.64
CYCLE_PER_TOKEN_MS = 1.01
UNTUNED_ALL_REDUCE_MS = 4.67
# Each secondary NCCL value that differs from the tuned set costs this much (invented).
SECONDARY_NCCL_MS = 0.35
# The tuned set on NVLink instead of PCIe: 846 -> 745 tok/s measured on two H200.
NVLINK_TUNED_FACTOR = 846 / 745
TTFT_MS = 180.0
TTFT_SPREAD = 0.08
CACHED_TTFT_MS = 18.0
PREFILL_FREE_TOKENS = 1024
PREFILL_TOK_PER_MS = 8.0
CONTEXT_COST_PER_1024 = 0.007
# A client counts either the whole request or the decode alone; this share of the expected time is decode, so that
# both readings of a 500-token run are within 2.5 % of the table.
DECODE_SHARE = 0.976
STORY_SD = 4.0 / 94.0
# Chance that draft position 1, 2, 3 ... is accepted; the sums give 1.50 / 1.755 / 1.83 / 1.86 / 1.88 / ... 1.885.
SURVIVAL = (0.5, 0.255, 0.075, 0.03, 0.02, 0.001, 0.001, 0.001, 0.001, 0.001)
# Total tok/s at 8 users by steps, tuned (invented).
TOTAL_AT_8 = {0: 350.0, 1: 356.0, 2: 378.0, 3: 372.0, 5: 340.0, 10: 270.0}
# Growth beyond 8 users, as a share of the growth up to 8: verification eats what batching lives on.
BEYOND_8_PLAIN, BEYOND_8_SPECULATIVE = 0.85, 0.65

TUNED_FIRST = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}
TUNED_SECOND = {
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}


def survival(steps: int, scale: float = 1.0, topk: int = 1) -> tuple[float, ...]:
    """Return the chance that at least 1, 2, ... ``steps`` drafts of a step are accepted."""
    tree = 1.0 if topk <= 1 else 1.12
    padded = [*SURVIVAL, *(0.0005 for _ in range(max(0, steps - len(SURVIVAL))))]
    return tuple(min(1.0, p * scale * tree) for p in padded[:steps])


def accept_length(steps: int, scale: float = 1.0, topk: int = 1) -> float:
    """Return the mean tokens a verify step yields, bonus token included; 1.0 without speculation.

    ``scale`` multiplies what drafting adds (accept length minus one): wiring, temperature, faults.
    """
    return 1.0 + sum(survival(steps, scale, topk))


def temperature_scale(temperature: float) -> float:
    """Return the share of accepted drafts left at ``temperature``.

    Source: EAGLE issue 143, chain drafts: accept length 1.69 at temperature 0, 1.50 at 1.
    """
    return 1.0 - 0.275 * min(max(temperature, 0.0), 2.0)


def all_reduce_ms(rank_environments: Sequence[Mapping[str, str]], topology: str = "pcie") -> float:
    """Return what the ranks' NCCL environment costs every target forward, in ms, against the tuned set.

    The slowest rank decides. One rank has no all-reduce; on NVLink nothing is gained by the PCIe set.
    """
    if len(rank_environments) < 2 or topology == "nvlink":
        return 0.0
    return max(_rank_all_reduce_ms(environment) for environment in rank_environments)


def _rank_all_reduce_ms(environment: Mapping[str, str]) -> float:
    if any(environment.get(name) != value for name, value in TUNED_FIRST.items()):
        return UNTUNED_ALL_REDUCE_MS
    return SECONDARY_NCCL_MS * sum(environment.get(name) != value for name, value in TUNED_SECOND.items())


def topology_factor(rank_environments: Sequence[Mapping[str, str]], topology: str) -> float:
    """Return the slow-down of the PCIe set where it does not belong (1.0 elsewhere)."""
    low_latency = any(environment.get("NCCL_PROTO") == "LL" for environment in rank_environments)
    return NVLINK_TUNED_FACTOR if topology == "nvlink" and low_latency and len(rank_environments) > 1 else 1.0


def cycle_ms(steps: int, draft_tokens: int | None = None, concurrency: int = 1, extra_ms: float = 0.0) -> float:
    """Return the duration of one target forward (verify step, or plain decode with 0 steps) in ms.

    ``draft_tokens`` are the tokens verified at once, ``steps + 1`` unless said. At several users it is the time in
    which each of them gets one step.
    """
    if steps <= 0:
        alone = PLAIN_DECODE_MS
    else:
        alone = CYCLE_FIXED_MS + CYCLE_PER_TOKEN_MS * (draft_tokens if draft_tokens is not None else steps + 1)
    if concurrency <= 1:
        return alone + extra_ms
    table_alone = PLAIN_DECODE_MS if steps <= 0 else CYCLE_FIXED_MS + CYCLE_PER_TOKEN_MS * (steps + 1)
    total_alone = 1000.0 * accept_length(steps) / table_alone
    growth = math.log(_total_at_8(steps) / total_alone) / math.log(8.0)
    beyond = BEYOND_8_PLAIN if steps <= 0 else BEYOND_8_SPECULATIVE
    total: float = total_alone * min(concurrency, 8) ** growth * (max(concurrency, 8) / 8.0) ** (growth * beyond)
    shared = 1000.0 * accept_length(steps) * concurrency / total
    return shared * alone / table_alone + extra_ms


def decode_rate(
    steps: int, *, tuned: bool = True, concurrency: int = 1, accept_scale: float = 1.0, draft_tokens: int | None = None
) -> float:
    """Return tok/s of all users together, noise off, short context."""
    extra = 0.0 if tuned else UNTUNED_ALL_REDUCE_MS
    cycle = cycle_ms(steps, draft_tokens, concurrency, extra)
    return 1000.0 * accept_length(steps, accept_scale) * concurrency / cycle


def _total_at_8(steps: int) -> float:
    known = sorted(TOTAL_AT_8)
    if steps >= known[-1]:
        return max(100.0, TOTAL_AT_8[known[-1]] - 10.0 * (steps - known[-1]))
    lower = max(k for k in known if k <= steps)
    upper = min(k for k in known if k > steps)
    share = (steps - lower) / (upper - lower)
    return TOTAL_AT_8[lower] * (1 - share) + TOTAL_AT_8[upper] * share


def context_factor(tokens: float) -> float:
    """Return how much longer a forward takes with ``tokens`` of context (1.007 at 1024)."""
    return 1.0 + CONTEXT_COST_PER_1024 * tokens / 1024.0


def ttft_ms(new_tokens: int, cached_tokens: int, spread: float = 0.0) -> float:
    """Return the time to the first token; ``spread`` is the run's draw in standard units (0 = exactly the mean)."""
    total = max(1, new_tokens + cached_tokens)
    base = CACHED_TTFT_MS + (TTFT_MS - CACHED_TTFT_MS) * new_tokens / total
    prefill = max(0, new_tokens - PREFILL_FREE_TOKENS) / PREFILL_TOK_PER_MS
    return (base + prefill) * (1.0 + TTFT_SPREAD / 2 * max(-2.0, min(2.0, spread)))


def noise_factor(
    seed: int, run: int, sd: float = STORY_SD, *, drift_per_run: float = 0.0, autocorrelation: float = 0.0
) -> float:
    """Return the factor on the decode rate of run number ``run`` (1.0 when ``sd`` and drift are 0).

    ``sd`` is relative: the story's 4 tok/s at 94. ``drift_per_run`` adds a trend (0.001 = 0.1 % a run),
    ``autocorrelation`` in [0, 1) makes neighbouring runs alike while the standard deviation stays ``sd``.
    """
    deviation = _autocorrelated(seed, run, autocorrelation) if autocorrelation else _standard(seed, run)
    return max(0.2, (1.0 + sd * deviation) * (1.0 + drift_per_run * run))


def _standard(seed: int, run: int) -> float:
    return random.Random(f"{seed}:{run}").gauss(0.0, 1.0)


def _autocorrelated(seed: int, run: int, rho: float) -> float:
    if not 0.0 <= rho < 1.0:
        raise ValueError(f"autocorrelation must be in [0, 1), got {rho}")
    terms = 1 + min(400, int(math.log(1e-4) / math.log(rho)))
    weight = math.sqrt(1.0 - rho * rho)
    return weight * sum(rho**k * _standard(seed, run - k) for k in range(terms))


def draw_accepted(generator: random.Random, chances: Sequence[float], tokens: int) -> list[int]:
    """Return accepted drafts per verify step until ``tokens`` are produced; the last step may overshoot.

    Source: generate_eagle3_step3.json: 44 steps with 86 accepted drafts for 128 tokens, not cut to fit.
    """
    steps: list[int] = []
    produced = 0
    while produced < tokens:
        draw = generator.random()
        accepted = 0
        while accepted < len(chances) and draw < chances[accepted]:
            accepted += 1
        steps.append(accepted)
        produced += accepted + 1
    return steps
