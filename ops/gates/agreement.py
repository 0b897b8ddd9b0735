"""Does it say what the baseline says? Speculation must not change the answer.

Greedy output is not bit-identical on GPUs: kernels differ by batch shape, so equal logits part somewhere (recorded on
an H200: equal up to token 26 to 500; two servers without speculation, TP 1 and TP 2: up to 8). Prefixes are compared.
"""

import math
import statistics
from collections.abc import Mapping

from ops.engine import wiring
from ops.gates import texts
from ops.gates.prompt_set import short_prompts
from ops.model.gate import Completion, Gate, Generation, Learned, Server
from ops.model.profile import ADAPTIVE_STEPS
from ops.model.profile_parts import AgreementGate
from ops.model.verdict import Question, Verdict

ASK = Question("agreement", "Do greedy answers begin as the stored ones of the baseline do?")
TOKENS = 128
"""Tokens of an answer that are compared: the reference has as many."""
MIN_CYCLES = 100
"""Verify cycles that an accept length is taken from."""
MOST_TOKENS = 1024
BYTES_A_TOKEN = 2
"""Of a prompt, low on purpose: English has 4 to 5, code 3, scripts with 3 bytes a character 2 to 4."""


def judge(server: Server, learned: Learned) -> Verdict:
    baseline = server.stored.baseline
    greedy = server.profile.traffic.temperature == 0  # else the accept length is of other answers
    learned.greedy = answers(server, tokens(server) if greedy else TOKENS)
    if baseline is None and not server.profile.speculative:
        return ASK.skipped("first measurement of this baseline: its answers become the reference")
    if baseline is None:
        return ASK.inconclusive(
            f"no reference: {server.stored.baseline_problem or 'the baseline was never measured on this host'}",
            "deploy the baseline profile on this host first, or pass --assume-baseline FILE",
        )
    return ruling(learned.greedy, baseline.reference_ids, server.profile.gates.agreement)


def tokens(server: Server) -> int:
    """Return how many tokens to ask of each prompt: TOKENS, or more where few prompts and a draft whose every token is
    accepted would not have MIN_CYCLES; never more than the contexts of target and draft have room for."""
    profile, spec = server.profile, server.profile.speculation
    if spec is None:
        return TOKENS
    prompts = short_prompts(profile.traffic.prompts)
    steps = max(spec.steps, *ADAPTIVE_STEPS) if spec.adaptive else spec.steps
    needed = 1 + (steps + 1) * math.ceil(MIN_CYCLES / len(prompts))  # the first token is the prefill's
    if needed <= TOKENS:
        return TOKENS
    longest = max(len(text.encode()) for text in prompts.values()) // BYTES_A_TOKEN
    room = [context - longest for context in _contexts(server)]
    return max(TOKENS, min(needed, MOST_TOKENS, *room))


def _contexts(server: Server) -> list[int]:
    spec, models = server.profile.speculation, server.facts().get("models") or {}
    told = [wiring.context((models.get(role) or {}).get("config") or {}) for role in ("target", "draft")]
    pinned = [server.profile.engine.context_length, spec.draft.max_position_embeddings if spec else None]
    return [length for length in (*told, *pinned) if length]


def answers(server: Server, tokens: int = TOKENS) -> dict[str, Completion]:
    """Generate the greedy answers to the short prompts; few at a time, for the numerics of small batches."""
    prompts = short_prompts(server.profile.traffic.prompts)
    server.say(f"greedy answers of {tokens} tokens to {len(prompts)} prompts")
    requests = [Generation(text=text, tokens=tokens) for text in prompts.values()]
    completions = server.batch(requests, 2, server.profile.gates.generation.timeout_s * 2, give_up_after=1)
    return dict(zip(prompts, completions, strict=True))


def ruling(seen: Mapping[str, Completion], reference: Mapping[str, tuple[int, ...]], policy: AgreementGate) -> Verdict:
    """Judge the answers' common prefixes with the reference."""
    failed = {name: c.error for name, c in seen.items() if not c.ok}
    if failed:
        name, error = next(iter(failed.items()))
        return ASK.failed(f"{name}: {error}", "`ops logs`, then `ops gate`", failed=failed)
    prefixes = {n: texts.common_prefix(c.output_ids, reference[n]) for n, c in seen.items() if reference.get(n)}
    if len(prefixes) < len(seen) or not prefixes or not all(c.output_ids for c in seen.values()):
        return ASK.inconclusive(
            "token ids are missing on one side",
            "remove baseline.json from the instance's folder on the host, then deploy the baseline to measure it",
            prefixes=prefixes,
        )
    early = sorted(name for name, length in prefixes.items() if length < policy.min_prefix_tokens)
    share = len(early) / len(prefixes)
    middle = statistics.median(prefixes.values())
    evidence = {"common_prefix_tokens": prefixes, "median": middle, "early": early}
    if share > policy.max_early_splits:
        return ASK.failed(
            f"{len(early)} of {len(prefixes)} answers leave the baseline's within {policy.min_prefix_tokens} tokens",
            "target weights, quantisation or template differ from the baseline's: compare both manifests",
            **evidence,
        )
    return ASK.passed(f"equal for {middle:.0f} tokens in the median, {min(prefixes.values())} at least", **evidence)


GATE = Gate(ASK.name, ASK.question, 80, judge, needs=("generation",))
