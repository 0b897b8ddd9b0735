"""A server whose port is taken can keep running and hold the GPUs after printing the bind error."""

from ops.checks import Check, Question, Verdict
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts


def judge(ask: Question, facts: Facts, profile: Profile, spec: HostSpec) -> Verdict:
    ours = {process["pid"] for process in facts["processes"]}
    bind = spec.bind or profile.engine.host
    for entry in facts["listeners"]:
        if entry["port"] != profile.engine.port or entry["pid"] in ours or not _collides(bind, entry["address"]):
            continue
        owner = (
            f"pid {entry['pid']} of {entry['user']} ({entry['title']})" if entry["pid"] else "a process we cannot see"
        )
        return ask.failed(
            f"port {entry['port']} on {entry['address']} already belongs to {owner}",
            "stop that process, or change engine.port in the profile",
            holder=entry,
        )
    return ask.passed(f"port {profile.engine.port} is free or ours")


def _collides(bind: str, address: str) -> bool:
    return bind == address or {"0.0.0.0", "::"} & {bind, address} != set()


CHECK = Check("port", "Is the engine's port free, or ours?", 30, judge)
