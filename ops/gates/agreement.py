"""Does it say what the baseline says? Speculation must not change the answer.

Greedy output is not bit-identical on GPUs: kernels differ by batch shape, so equal logits part somewhere (recorded on
an H200: equal up to token 26 to 500; two servers without speculation, TP 1 and TP 2: up to 8). Prefixes are compared.
"""

import statistics
from collections.abc import Mapping

from ops.gates import texts
from ops.gates.prompt_set import short_prompts
from ops.model.gate import Completion, Gate, Generation, Learned, Server
from ops.model.profile_parts import AgreementGate
from ops.model.verdict import Question, Verdict

ASK = Question("agreement", "Do greedy answers begin as the stored ones of the baseline do?")
TOKENS = 128


def judge(server: Server, learned: Learned) -> Verdict:
    baseline = server.stored.baseline
    learned.greedy = answers(server)
    if baseline is None and not server.profile.speculative:
        return ASK.skipped("first measurement of this baseline: its answers become the reference")
    if baseline is None:
        return ASK.inconclusive(
            f"no reference: {server.stored.baseline_problem or 'the baseline was never measured on this host'}",
            "deploy the baseline profile on this host first, or pass --assume-baseline FILE",
        )
    return ruling(learned.greedy, baseline.reference_ids, server.profile.gates.agreement)


def answers(server: Server) -> dict[str, Completion]:
    """Generate the greedy answers to the short prompts; few at a time, for the numerics of small batches."""
    prompts = short_prompts(server.profile.traffic.prompts)
    server.say(f"greedy answers of {TOKENS} tokens to {len(prompts)} prompts")
    requests = [Generation(text=text, tokens=TOKENS) for text in prompts.values()]
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
