"""Will the next boot bring this release back, with its guard before it?"""

from ops.verify import Check, Question, Seen, Verdict


def judge(ask: Question, seen: Seen) -> Verdict:
    links, guard = seen.facts["links"], seen.facts["guard"]
    problems = [
        f"{unit['unit']} is not enabled"
        for unit in seen.deployed["units"]
        if not unit["enabled"] and not unit["problem"]
    ]
    if guard["wanted"] != "running":
        problems.append("it was stopped on purpose and stays stopped")
    if links["pending"] is not None:
        problems.append(f"{links['pending']} is pending: a boot goes back to {links['last-good'] or links['baseline']}")
    elif links["last-good"] != links["current"]:
        problems.append(f"the last good release is {links['last-good']}: a later failure goes back to that one")
    if problems:
        return ask.failed(
            "; ".join(problems), "deploy the profile again, or `ops start` where it was stopped", problems=problems
        )
    return ask.passed(f"{seen.release} starts at boot")


CHECK = Check("boot", "Will the next boot bring this release back?", 36, judge)
