"""Is what runs the locked software? An image or a venv may have been changed under the running engine's feet."""

from collections.abc import Mapping
from typing import Any

from ops.model.gate import Gate, Learned, Server
from ops.model.verdict import Question, Verdict

ASK = Question("software", "Does the engine run from the locked packages, unchanged?")


def judge(server: Server, learned: Learned) -> Verdict:
    return ruling(server.facts().get("software_answer"))


def ruling(answer: Mapping[str, Any] | None) -> Verdict:
    """Judge what the running environment says of itself (`ops.remote.stack.prove_current`)."""
    if answer is None:
        return ASK.skipped("not looked at on this kind of host")
    if answer.get("unmanaged"):
        return ASK.skipped("the host's own environment, not made from a lock (ops_stacks is not set)")
    if "problem" in answer:
        return ASK.failed(
            answer["problem"], "ops restart starts it anew from the release's image; else deploy again", **answer
        )
    problems = answer["packages"]["problems"]
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        return ASK.failed(
            "; ".join(problems[:3]) + more,
            "ops restart starts a fresh container; a changed venv: ops host install --stack STACK",
            problems=problems,
        )
    return ASK.passed(f"{answer['packages']['installed']} packages", installed=answer["packages"]["installed"])


GATE = Gate(ASK.name, ASK.question, 25, judge, needs=("alive",), of_follower=True)
