"""Are target and draft the pinned ones, wired as pinned?

The comparison itself is `ops.engine.wiring`, which preflight asks as well; here it is asked again, because a model may
change on the disk after preflight, and digests are compared with those of the first good deploy.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ops.engine import wiring
from ops.model.gate import Gate, Learned, Server
from ops.model.profile import Profile
from ops.model.verdict import Question, Verdict

ASK = Question("wiring", "Are target and draft on the host the pinned ones, with the pinned layer ids?")


def judge(server: Server, learned: Learned) -> Verdict:
    models = server.facts().get("models") or {}
    known = server.stored.expectations
    stored = {k: v for k, v in known.items() if k.startswith("digest/")}
    verdict = ruling(server.profile, models, stored)
    if verdict.passed:
        learned.expectations |= wiring.digests(server.profile, models)
        replaced = _replaced(server.profile, models, stored)
        learned.expectations |= dict.fromkeys(outdated(server.profile, known, replaced))
    return verdict


def outdated(profile: Profile, known: Iterable[str], replaced: Iterable[str]) -> list[str]:
    """Return the keys of accept lengths that were measured with a model which another took the place of."""
    paths = {"target": profile.engine.model_path}
    if profile.speculation:
        paths["draft"] = profile.speculation.draft_path
    gone = [f"/{paths[_role_and_kind(key)[0]]}/" for key in replaced]
    return [key for key in known if key.startswith("accept_length/") and any(path in key for path in gone)]


def ruling(profile: Profile, models: Mapping[str, Any], stored: Mapping[str, Any]) -> Verdict:
    """Judge the folders' configurations against the profile's pins, and the digests that it does not pin against
    those of the first good deploy: a pin says that a model was replaced on purpose."""
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
    replaced = _replaced(profile, models, stored)
    changed = [key for key in now if stored.get(key, now[key]) != now[key] and key not in replaced]
    problems += [f"{key.removeprefix('digest/')} changed since it was first good" for key in changed]
    evidence = {
        "digests": now,
        "recorded_now": sorted(now.keys() - stored.keys()),
        "replaced": replaced,
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


def _replaced(profile: Profile, models: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Return the keys of digests that differ from what was first good and are the profile's to pin."""
    pins = {"target": profile.target, "draft": profile.speculation and profile.speculation.draft}
    found = []
    for key, digest in wiring.digests(profile, models).items():
        role, kind = _role_and_kind(key)
        if stored.get(key, digest) != digest and getattr(pins[role], kind):
            found.append(key)
    return found


def _role_and_kind(key: str) -> tuple[str, str]:
    _, role, kind, _ = key.split("/", 3)  # as `wiring.digests` makes it
    return role, kind


GATE = Gate(ASK.name, ASK.question, 50, judge, needs=("alive",), of_follower=True)
