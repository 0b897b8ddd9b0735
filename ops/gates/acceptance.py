"""Does the target accept what the draft proposes? The one signal for faults that report nothing."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.engine import wiring
from ops.gates import agreement, wanted
from ops.gates.prompt_set import short_prompts
from ops.model.gate import Completion, Gate, Generation, Learned, Server
from ops.model.profile_parts import AcceptanceGate, Speculation
from ops.model.verdict import Question, Verdict

ASK = Question("acceptance", "Is the accept length of the gate's prompts above the floor, and what it was when good?")

NOTHING = 1.10
"""Tokens a cycle, bonus included: below, practically nothing is accepted. A draft that knows its target has 1.5 and
more with one step; measured with a random draft: 1.00 (recording generate_eagle3_random_draft_steps2.json)."""


@dataclass(frozen=True)
class Acceptance:
    """Sums over requests. `length` counts the bonus token: 1 means nothing accepted."""

    correct: int
    proposed: int
    cycles: int

    @property
    def length(self) -> float:
        return 1 + self.correct / self.cycles

    @property
    def rate(self) -> float:
        """Accepted share of the proposed drafts; under adaptive steps the engine's own count of proposals is off."""
        return self.correct / self.proposed if self.proposed else math.nan


def judge(server: Server, learned: Learned) -> Verdict:
    spec = server.profile.speculation
    if spec is None:
        return ASK.skipped("the profile does not speculate")
    temperature = server.profile.traffic.temperature
    if temperature == 0 and learned.greedy is not None:
        completions = list(learned.greedy.values())
    else:
        completions = _sampled(server, temperature)
    key = expectation_key(server, spec)
    # None where `wiring` found another model in the place of the one that the stored length is of.
    stored = {**server.stored.expectations, **learned.expectations}.get(key)
    draft = (server.facts().get("models") or {}).get("draft") or {}
    verdict = ruling(
        completions,
        server.profile.gates.acceptance,
        stored,
        spec.draft.layer_ids,
        wiring.captured(draft.get("config") or {}),
    )
    if "accept_length" in verdict.evidence:
        learned.figures["accept_length"] = verdict.evidence["accept_length"]
        learned.figures["accept_rate"] = verdict.evidence["accept_rate"]
    if verdict.passed and not isinstance(stored, int | float):
        learned.expectations[key] = verdict.evidence["accept_length"]
    return verdict


def expectation_key(server: Server, spec: Speculation) -> str:
    """Return the key of the stored length: lengths of other steps, drafts, temperatures, kinds of text or thresholds
    are no yardstick. The project's own prompts and the thresholds' defaults are not named."""
    own = server.profile.traffic.prompts
    thresholds = [1.0 if t is None else t for t in (spec.accept_threshold_single, spec.accept_threshold_acc)]
    parts = [
        wanted.stack_digest(server.manifest),
        server.profile.engine.model_path,
        spec.draft_path,
        f"steps={spec.steps},topk={spec.topk},draft_tokens={spec.draft_tokens},adaptive={spec.adaptive}",
        f"temperature={server.profile.traffic.temperature}",
    ]
    if own:
        parts.append(f"prompts={hashlib.sha256(json.dumps(short_prompts(own)).encode()).hexdigest()}")
    if thresholds != [1.0, 1.0]:
        parts.append("thresholds=" + ",".join(f"{t:g}" for t in thresholds))
    return "accept_length/" + "/".join(parts)


def total(completions: Sequence[Completion]) -> Acceptance | None:
    """Sum the per-request counts; None when the engine does not tell them.

    Source: SGLang 0.5.23 srt/managers/tokenizer_manager.py:3138-3208. `spec_accept_length` is not used: it counts the
    token of the prefill as well, and the average in /server_info is of the server's lifetime.
    """
    metas: list[Mapping[str, Any]] = [c.meta for c in completions]
    names = ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_verify_ct")
    if not metas or any(not isinstance(meta.get(name), int) for meta in metas for name in names):
        return None
    correct, proposed, cycles = (sum(meta[name] for meta in metas) for name in names)
    return Acceptance(correct, proposed, cycles) if cycles else None


def ruling(
    completions: Sequence[Completion],
    policy: AcceptanceGate,
    stored: Any,
    pinned_ids: Sequence[int],
    draft_ids: Sequence[int] | None,
) -> Verdict:
    """Judge the accept length. `stored`: the length when this combination was good, or None."""
    broken = [c.error for c in completions if not c.ok]
    if broken:
        return ASK.failed(f"a request failed: {broken[0]}", "`ops logs`, then `ops gate`", errors=broken)
    seen = total(completions)
    if seen is None:
        return ASK.inconclusive(
            "meta_info has no speculative counters",
            "the pinned engine version must report spec_verify_ct: `ops verify` the installed one",
            cycles=0,
        )
    if seen.cycles < agreement.MIN_CYCLES:
        return ASK.inconclusive(
            f"{seen.cycles} verify cycles counted, {agreement.MIN_CYCLES} are needed",
            "more traffic.prompts, or shorter ones: an answer must fit into the context beside its prompt",
            cycles=seen.cycles,
        )
    length = round(seen.length, 3)
    evidence = {
        "accept_length": length,
        "accept_rate": None if math.isnan(seen.rate) else round(seen.rate, 3),
        "cycles": seen.cycles,
        "stored": stored,
        "floor": policy.min_accept_length,
        "layer_ids_pinned": list(pinned_ids),
        "layer_ids_of_draft": None if draft_ids is None else list(draft_ids),
    }
    ids = f"layer ids: pinned {list(pinned_ids)}, draft's own {evidence['layer_ids_of_draft']}"
    remedy = "check layer ids, draft and vocabulary against the target (`ops profile show`), and the engine's version"
    if length < NOTHING:
        words = "hidden states, draft or vocabulary do not match the target"
        return ASK.failed(f"accept length {length:.2f}: {words}; {ids}", remedy, **evidence)
    if policy.min_accept_length is not None and length < policy.min_accept_length:
        return ASK.failed(f"accept length {length:.2f} < floor {policy.min_accept_length}; {ids}", remedy, **evidence)
    if isinstance(stored, int | float) and length < stored * (1 - policy.tolerance):
        drop = 1 - length / stored
        return ASK.failed(
            f"accept length {length:.2f}, {drop:.0%} below {stored:.2f} when last good; {ids}",
            remedy,
            **evidence,
        )
    known = f"when last good {stored:.2f}" if isinstance(stored, int | float) else "recorded: first time here"
    return ASK.passed(f"accept length {length:.2f} over {seen.cycles} cycles ({known})", **evidence)


def _sampled(server: Server, temperature: float) -> list[Completion]:
    server.say(f"answers at temperature {temperature} for the accept length")
    tokens = agreement.tokens(server)
    requests = [
        Generation(text=text, tokens=tokens, temperature=temperature)
        for text in short_prompts(server.profile.traffic.prompts).values()
    ]
    return server.batch(requests, 2, server.profile.gates.generation.timeout_s * 2, give_up_after=1)


GATE = Gate(ASK.name, ASK.question, 90, judge, needs=("generation",))
