"""Are target and draft the pinned ones, wired as pinned?

The comparison itself is `ops.engine.wiring`, which preflight asks as well; here it is asked again, because a model may
change on the disk after preflight, and digests are compared with those of the first good deploy.
"""

from collections.abc import Mapping
from typing import Any

from ops.engine import wiring
from ops.model.gate import Gate, Learned, Server
from ops.model.profile import Profile
from ops.model.verdict import Question, Verdict

ASK = Question("wiring", "Are target and draft on the host the pinned ones, with the pinned layer ids?")


def judge(server: Server, learned: Learned) -> Verdict:
    models = server.facts().get("models") or {}
    stored = {k: v for k, v in server.stored.expectations.items() if k.startswith("digest/")}
    verdict = ruling(server.profile, models, stored)
    if verdict.passed:
        learned.expectations |= wiring.digests(server.profile, models)
    return verdict


def ruling(profile: Profile, models: Mapping[str, Any], stored: Mapping[str, Any]) -> Verdict:
    """Judge the folders' configurations against the profile's pins and the digests of the first good deploy."""
    absent = wiring.absent(profile, models)
    if absent:
        return ASK.inconclusive(
            f"config.json of the {' and the '.join(absent)} cannot be read on the host",
            "check the path in the profile (and ops_paths), and the permissions on the host",
            models={role: (models.get(role) or {}).get("path") for role in wiring.roles(profile)},
        )
    unread = list(wiring.unread(profile, models))
    problems = wiring.problems(profile, models)
    now = wiring.digests(profile, models)
    changed = [key for key in now if stored.get(key, now[key]) != now[key]]
    problems += [f"{key.removeprefix('digest/')} changed since it was first good" for key in changed]
    evidence = {
        "digests": now,
        "recorded_now": sorted(now.keys() - stored.keys()),
        "layer_ids": wiring.captured(models["draft"]["config"]) if profile.speculation else None,
        "problems": problems,
    }
    if problems:
        return ASK.failed(
            "; ".join(problems),
            "put the pinned model back on the host, or pin the new one in the profile after measuring it",
            **evidence,
        )
    if unread:
        return ASK.inconclusive(
            f"pinned, but not read on the host: {', '.join(unread)}",
            "check the permissions of the weights; or leave the pin out, then it is recorded at the first good deploy",
            **evidence,
        )
    first = " (digests recorded: first time on this host)" if evidence["recorded_now"] else ""
    return ASK.passed(f"as pinned{first}", **evidence)


GATE = Gate(ASK.name, ASK.question, 50, judge, needs=("alive",), of_follower=True)
