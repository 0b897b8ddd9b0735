"""Is what the supervisor will start the release's own unit, and has it read it?"""

from ops.verify import Check, Question, Seen, Verdict


def judge(ask: Question, seen: Seen) -> Verdict:
    problems = []
    for unit in seen.deployed["units"]:
        name = unit["unit"]
        if unit["problem"]:
            problems.append(f"{name}: {unit['problem']}")
        elif not unit["same"]:
            problems.append(f"{name}: {unit['installed']} is not {unit['wanted']}")
        elif unit["stale"]:
            problems.append(f"{name}: the file changed and the supervisor still holds the old version")
    if problems:
        return ask.failed("; ".join(problems), "deploy the profile again: it installs its unit", problems=problems)
    return ask.passed(", ".join(unit["unit"] for unit in seen.deployed["units"]))


CHECK = Check("unit", "Will the supervisor start exactly the release's unit?", 32, judge)
