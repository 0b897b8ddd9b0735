"""Is what runs made of the locked packages, in the release's image?"""

from ops.gates.software import ruling
from ops.verify import Check, Question, Seen, Verdict


def judge(ask: Question, seen: Seen) -> Verdict:
    answer = ruling(seen.facts.get("software_answer"))
    return answer.model_copy(update={"name": ask.name, "question": ask.question})


CHECK = Check("software", "Does the engine run from the locked packages, unchanged?", 29, judge)
