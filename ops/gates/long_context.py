"""Does it survive a request longer than the draft was made for?"""

from typing import Any

from ops.gates import texts
from ops.gates.prompt_set import long_text
from ops.model.gate import Completion, Gate, Generation, Learned, Server
from ops.model.verdict import Question, Verdict

ASK = Question("long-context", "Is a request beyond the draft's max_position_embeddings answered?")
TOKENS = 32
MARGIN_TOKENS = 64
PROBE_CHARACTERS = 4000


def judge(server: Server, learned: Learned) -> Verdict:
    spec = server.profile.speculation
    if spec is None:
        return ASK.skipped("the profile has no draft")
    limit = spec.draft.max_position_embeddings or draft_limit(server.facts())
    if limit is None:
        return ASK.skipped("the draft's config.json names no max_position_embeddings")
    room = context(server)
    if room is None:
        return ASK.inconclusive("the engine does not say how long a request may be", "`ops logs`, then `ops gate`")
    wanted = limit + MARGIN_TOKENS
    if wanted + TOKENS > room:
        return ASK.skipped(f"no request can be so long: the server takes {room} tokens, the draft {limit}")
    probe = server.batch([Generation(text=long_text(PROBE_CHARACTERS), tokens=8)], 1, 60.0)[0]
    if not probe.ok or not probe.prompt_tokens:
        return ASK.failed(f"a prompt of {PROBE_CHARACTERS} characters: {probe.error}", "`ops logs`")
    characters = int(PROBE_CHARACTERS / probe.prompt_tokens * wanted * 1.02)
    server.say(f"one request of about {wanted} tokens (the draft was made for {limit})")
    timeout_s = server.profile.gates.generation.timeout_s + wanted / 250
    answer = server.batch([Generation(text=long_text(characters), tokens=TOKENS)], 1, timeout_s)[0]
    return ruling(answer, limit)


def draft_limit(facts: Any) -> int | None:
    """Return the draft's max_position_embeddings as the host has it."""
    draft = (facts.get("models") or {}).get("draft") or {}
    value = (draft.get("config") or {}).get("max_position_embeddings")
    return value if isinstance(value, int) else None


def context(server: Server) -> int | None:
    """Return how many tokens a request may have, prompt and answer. Source: `max_req_input_len` of /server_info."""
    body = server.http("GET", "/server_info", timeout_s=30.0).body
    lengths = [body.get(key) for key in ("max_req_input_len", "context_length")] if isinstance(body, dict) else []
    known = [length for length in lengths if isinstance(length, int) and length > 0]
    return min(known) if known else None


def ruling(answer: Completion, limit: int) -> Verdict:
    """Judge the one long answer."""
    evidence = {
        "draft_max_position_embeddings": limit,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "seconds": round(answer.elapsed_s, 2),
        "error": answer.error,
    }
    remedy = "use a draft made for this context, or set engine.context_length below the draft's limit"
    if not answer.ok:
        return ASK.failed(f"a prompt beyond {limit} tokens: {answer.error}", remedy, **evidence)
    if (answer.prompt_tokens or 0) <= limit:
        return ASK.inconclusive(f"the prompt had only {answer.prompt_tokens} tokens", "report this", **evidence)
    if answer.completion_tokens != TOKENS:
        return ASK.failed(f"{answer.completion_tokens} tokens instead of {TOKENS}", remedy, **evidence)
    garbage = texts.complaint(answer.text)
    if garbage:
        return ASK.failed(f"beyond {limit} tokens the answer is no text: {garbage}", remedy, **evidence)
    return ASK.passed(f"{answer.prompt_tokens} tokens answered (draft: {limit})", **evidence)


GATE = Gate(ASK.name, ASK.question, 100, judge, needs=("generation",), costly=True, on_rollback=False)
