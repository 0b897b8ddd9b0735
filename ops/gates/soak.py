"""Does it hold under load? Many short requests at the highest concurrency; none may be lost."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ops.gates import wanted
from ops.gates.alive import unexpected_exits
from ops.gates.prompt_set import short_prompts
from ops.model.gate import Completion, Gate, Generation, Learned, Server
from ops.model.verdict import Question, Verdict

ASK = Question("soak", "Are all requests of a burst answered in full, and is the engine the same one after?")
TOKENS = 12
TIMEOUT_S = 60.0


def judge(server: Server, learned: Learned) -> Verdict:
    count = server.profile.gates.soak.requests
    concurrency = max(server.profile.traffic.concurrency)
    prompts = list(short_prompts(server.profile.traffic.prompts).values())
    # Numbered, so that the prefix cache does not answer for the engine.
    requests = [Generation(text=f"({i}) {prompts[i % len(prompts)]}", tokens=TOKENS) for i in range(count)]
    server.say(f"{count} requests of {TOKENS} tokens, {concurrency} at a time")
    completions = server.batch(requests, concurrency, TIMEOUT_S, stream=True, give_up_after=4 * concurrency)
    return ruling(completions, concurrency, learned.pid, server.facts(), wanted.release(server))


def ruling(
    completions: Sequence[Completion],
    concurrency: int,
    pid: int | None,
    facts: Mapping[str, Any],
    release: str,
) -> Verdict:
    """Judge the burst, and whether the engine of before it (`pid`) still runs."""
    lost = Counter(c.error for c in completions if not c.ok)
    cut = [c for c in completions if c.ok and c.completion_tokens != TOKENS]
    engine = facts["engine"]
    evidence = {
        "requests": len(completions),
        "concurrency": concurrency,
        "errors": dict(lost.most_common(5)),
        "cut": len(cut),
        "first_lost": next((i for i, c in enumerate(completions) if not c.ok), None),
        "slowest_s": round(max(c.elapsed_s for c in completions), 2),
        "engine": {"state": engine.get("state"), "pid": engine.get("pid"), "pid_before": pid},
    }
    look = "`ops logs` shows what ended; lower traffic.concurrency or engine.max_running_requests, or roll back"
    died = engine.get("state") != "running" or (pid is not None and engine.get("pid") != pid) or unexpected_exits(facts)
    if lost:
        words, _ = lost.most_common(1)[0]
        after = "; the engine died" if died else ""
        return ASK.failed(f"{lost.total()} of {len(completions)} requests lost{after}: {words}", look, **evidence)
    if cut:
        got = sorted({c.completion_tokens or 0 for c in cut})
        return ASK.failed(f"{len(cut)} answers have {got} tokens instead of {TOKENS}", look, **evidence)
    if died:
        return ASK.failed(f"the engine died: {engine.get('state')}, pid {pid} -> {engine.get('pid')}", look, **evidence)
    return ASK.passed(f"{len(completions)} requests, {concurrency} at a time, none lost", **evidence)


GATE = Gate(ASK.name, ASK.question, 110, judge, needs=("generation",), costly=True, on_rollback=False)
