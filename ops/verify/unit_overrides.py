"""Does somebody else's file change the unit: a `systemctl edit` drop-in, a second program of the same name?"""

from ops.verify import Check, Question, Seen, Verdict


def judge(ask: Question, seen: Seen) -> Verdict:
    overrides = {unit["unit"]: unit["overrides"] for unit in seen.deployed["units"] if unit["overrides"]}
    if overrides:
        named = "; ".join(f"{unit} is changed by {', '.join(paths)}" for unit, paths in overrides.items())
        return ask.failed(
            named,
            "read it (systemctl cat), move what is wanted into the profile, and remove the file (systemctl revert)",
            overrides=overrides,
        )
    return ask.passed("none")


CHECK = Check("unit-overrides", "Does no other file change the units?", 34, judge)
