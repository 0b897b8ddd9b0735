"""Does the supervisor run exactly the current release, and nothing else of this instance beside it?"""

from collections.abc import Mapping, Sequence
from typing import Any

from ops.verify import Check, Question, Seen, Verdict


def judge(ask: Question, seen: Seen) -> Verdict:
    engine, processes = seen.facts["engine"], seen.facts["processes"]
    others = sorted({str(p["release"]) for p in processes if p["release"] != seen.release})
    own = [p for p in processes if p["release"] == seen.release]
    # A container's processes descend from Docker's, not from the client that the supervisor started.
    inside = seen.manifest["runtime"] == "docker"
    strangers = [p for p in own if not inside and not _descends(p, engine["pid"], processes)]
    if seen.facts["guard"]["wanted"] == "stopped" and not processes:
        return ask.inconclusive("it was stopped on purpose, so nothing runs to be verified", "ops start")
    if engine["state"] != "running" or not engine["pid"]:
        return ask.failed(
            f"{seen.release} should run, the supervisor says {engine['state']}: {engine['detail']}",
            "ops logs, then ops start or ops rollback",
            engine=engine["state"],
        )
    if seen.facts.get("unseen"):
        return ask.inconclusive(
            f"the environment of pid {engine['pid']} is closed to the agent, so nobody knows whose processes run",
            "give the SSH user the right to see the engine's processes (same user, or become)",
        )
    if others:
        return ask.failed(
            f"processes of {', '.join(others)} run as well",
            "ops restart ends them: they are this instance's",
            others=others,
        )
    if strangers:
        named = ", ".join(f"pid {p['pid']} ({p['title'][:40]}, parent {p['ppid']})" for p in strangers)
        return ask.failed(
            f"{named}: of this release, but not started by its supervisor",
            "ops restart ends them: they are this instance's",
            pids=[p["pid"] for p in strangers],
        )
    wanted = seen.manifest["expect"]["ranks"]
    if len(seen.ranks) != wanted:
        return ask.failed(f"{len(seen.ranks)} ranks run, the profile has {wanted}", "ops logs, then ops restart")
    return ask.passed(f"pid {engine['pid']} with {wanted} ranks", pid=engine["pid"], ranks=wanted)


def _descends(process: Mapping[str, Any], ancestor: int | None, processes: Sequence[Mapping[str, Any]]) -> bool:
    parents = {p["pid"]: p["ppid"] for p in processes}
    pid = process["pid"]
    while pid in parents:
        if pid == ancestor:
            return True
        pid = parents[pid]
    return False


CHECK = Check("running", "Does the supervisor run exactly the current release?", 10, judge)
