"""The models on the host are the ones the profile pins: checked in a second, instead of found out after a load."""

from ops.checks import Check, Question, Verdict
from ops.engine import wiring
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts


def judge(ask: Question, facts: Facts, profile: Profile, spec: HostSpec) -> Verdict:
    models = facts["models"]
    absent = wiring.absent(profile, models)
    if absent:
        folders = {"target": profile.engine.model_path}
        if profile.speculation is not None:
            folders["draft"] = profile.speculation.draft_path
        return ask.failed(
            "; ".join(f"there is no {role} at {spec.path(folders[role])} (no config.json)" for role in absent),
            "put the model there, or correct its path in the profile (or ops_paths in the inventory)",
        )
    problems = wiring.problems(profile, models)
    if problems:
        return ask.failed(
            "; ".join(problems),
            "put the pinned models there, or change the pins in the profile on purpose",
            problems=problems,
        )
    unread = list(wiring.unread(profile, models))
    if unread:
        return ask.inconclusive(
            f"pinned, but not read on the host: {', '.join(unread)}",
            "put the weights there, or check their permissions",
            unread=unread,
        )
    return ask.passed("as pinned")


CHECK = Check("models", "Are target and draft on the host the pinned ones?", 40, judge)
