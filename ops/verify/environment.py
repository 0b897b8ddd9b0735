"""Does every rank's process hold the release's environment? Files say what should be; /proc/<pid>/environ what is."""

from typing import Any

from ops.verify import Check, Question, Seen, Verdict

REMEDY = "ops restart (the unit starts it with the release's engine.env); then ops verify again"


def judge(ask: Question, seen: Seen) -> Verdict:
    wanted = seen.environment
    if not seen.ranks:
        return ask.inconclusive("no rank runs whose environment could be read", "ops start, then ops verify again")
    problems = [
        {"pid": rank["pid"], "variable": name, "wanted": value, "seen": rank["environ"].get(name)}
        for rank in seen.ranks
        if rank["environ"] is not None
        for name, value in wanted.items()
        if rank["environ"].get(name) != value
    ]
    if problems:
        return ask.failed(_words(problems), REMEDY, problems=problems)
    blank = [rank["pid"] for rank in seen.ranks if rank["environ"] is None]
    if blank:
        return ask.inconclusive(
            f"{len(blank)} of {len(seen.ranks)} ranks show a blank environment (pids {_list(blank)}): started "
            "without SPT_NOENV=1, and setting their process titles overwrote it; or this login may not read it",
            "ops restart (ops sets SPT_NOENV=1); set ansible_become: true where the engine runs as another user",
            blank=blank,
        )
    return ask.passed(f"{len(wanted)} variables in each of {len(seen.ranks)} ranks", variables=sorted(wanted))


def _words(problems: list[dict[str, Any]]) -> str:
    """One sentence a variable, however many ranks it concerns."""
    names = list(dict.fromkeys(problem["variable"] for problem in problems))
    parts = []
    for name in names:
        mine = [problem for problem in problems if problem["variable"] == name]
        seen = mine[0]["seen"]
        what = "is missing" if seen is None else f"is {seen!r}"
        parts.append(f"{name} {what} in {len(mine)} ranks (wanted {mine[0]['wanted']!r})")
    return "; ".join(parts)


def _list(pids: list[int]) -> str:
    return ", ".join(str(pid) for pid in pids)


CHECK = Check("environment", "Does every rank hold the release's environment?", 20, judge)
