"""Does it answer, in time and in full, with text?"""

import math
from collections.abc import Mapping

from ops.gates import texts
from ops.gates.prompt_set import short_prompts
from ops.model.gate import Completion, Gate, Generation, Learned, Server
from ops.model.verdict import Question, Verdict

ASK = Question("generation", "Do fixed prompts on both endpoints end in time, with the right token count, as text?")

WARM_UP_TOKENS = 16
WARM_UP_MAX = 8
SETTLED = 1.5
GARBAGE_SHARE = 0.25
PROMPTS = ("prose-1", "code-1", "chat-1", "data-1")


def judge(server: Server, learned: Learned) -> Verdict:
    policy = server.profile.gates.generation
    warm = warm_up(server, policy.timeout_s)
    learned.figures["warm_up_s"] = [round(c.elapsed_s, 2) for c in warm]
    if not warm[-1].ok:
        return ruling({"warm-up": warm[-1]}, WARM_UP_TOKENS)
    answers: dict[str, Completion] = {}
    for chat in (False, True):
        own = server.profile.traffic.prompts
        prompts = short_prompts(own)
        wanted = {name: prompts[name] for name in (list(prompts)[: len(PROMPTS)] if own else PROMPTS)}
        requests = [Generation(text=t, tokens=policy.max_tokens, chat=chat) for t in wanted.values()]
        endpoint = "chat" if chat else "generate"
        server.say(f"generating {policy.max_tokens} tokens for {len(requests)} prompts ({endpoint})")
        # Two at a time: what only breaks under load is for the soak to find, and to name.
        completions = server.batch(requests, 2, policy.timeout_s, give_up_after=2)
        answers |= {f"{endpoint} {name}": c for name, c in zip(wanted, completions, strict=True)}
    return ruling(answers, policy.max_tokens)


def warm_up(server: Server, timeout_s: float) -> list[Completion]:
    """Send short requests until two in a row take about the same time: kernels compiled on demand are no verdict.

    Returns: the requests sent; the last one failed when the engine does not answer at all.
    """
    done: list[Completion] = []
    text = next(iter(short_prompts(server.profile.traffic.prompts).values()))
    while len(done) < WARM_UP_MAX:
        # Shifted, so that the prefix cache does not turn a cold engine into a fast one.
        request = Generation(text=text[len(done) :], tokens=WARM_UP_TOKENS)
        done += server.batch([request], 1, timeout_s)
        if not done[-1].ok:
            return done
        if done[-1].elapsed_s > 5:
            server.say(f"warm-up request {len(done)} took {done[-1].elapsed_s:.0f} s")
        if len(done) >= 3 and done[-2].elapsed_s < SETTLED * done[-1].elapsed_s + 0.1 and done[-1].elapsed_s < 5:
            break
    return done


def ruling(answers: Mapping[str, Completion], tokens: int) -> Verdict:
    """Judge the answers by name of endpoint and prompt."""
    broken = {name: c.error for name, c in answers.items() if not c.ok}
    short = {
        name: f"{c.completion_tokens} tokens instead of {tokens}"
        for name, c in answers.items()
        if c.ok and c.completion_tokens != tokens
    }
    garbage = {name: texts.complaint(c.text) for name, c in answers.items() if c.ok and texts.complaint(c.text)}
    evidence = {
        "answers": len(answers),
        "slowest_s": round(max(c.elapsed_s for c in answers.values()), 2),
        "broken": broken,
        "wrong_count": short,
        "garbage": garbage,
        "begin": {name: c.text[:60] for name, c in answers.items()},
    }
    for problems, what, remedy in (
        (
            broken,
            "did not answer",
            "`ops logs`; a server that is healthy and does not generate hangs: roll back",
        ),
        (
            short,
            "counted wrong",
            "the engine stops or counts tokens wrongly: compare its version with the stack's",
        ),
    ):
        if problems:
            return ASK.failed(f"{len(problems)} of {len(answers)} {what}: {_first(problems)}", remedy, **evidence)
    if len(garbage) > math.floor(GARBAGE_SHARE * len(answers)):
        return ASK.failed(
            f"{len(garbage)} of {len(answers)} answers are no text: {_first(garbage)}",
            "weights, quantisation or kernels are wrong: verify the weights, and compare with the baseline profile",
            **evidence,
        )
    return ASK.passed(f"{len(answers)} answers of {tokens} tokens", **evidence)


def _first(problems: Mapping[str, str]) -> str:
    name, words = next(iter(problems.items()))
    return f"{name}: {words}"


GATE = Gate(ASK.name, ASK.question, 40, judge, needs=("alive", "itself", "health"))
