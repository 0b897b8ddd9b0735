"""A container's name belongs to one container; one that is not ours would stop every start of the engine."""

from ops.checks import Check, Question, Verdict
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts


def judge(ask: Question, facts: Facts, profile: Profile, spec: HostSpec) -> Verdict:
    if profile.runtime != "docker":
        return ask.skipped("the engine does not run in a container")
    seen = (facts.get("stack") or {}).get("container")
    if seen is None:
        return ask.passed("the container's name is free")
    ours = seen["instance_dir"] is not None and seen["instance_dir"] in (spec.instance_dir, facts.get("instance_dir"))
    if not ours:
        return ask.failed(
            f"the name {seen['name']} belongs to a container that this instance did not start: image "
            f"{seen['image_name']}, created {seen['created'][:19]}, {'running' if seen['running'] else 'stopped'}",
            f"rename or remove it yourself: docker rename {seen['name']} {seen['name']}-old",
            container=seen["id"],
        )
    if seen["restart"] != "no":
        return ask.failed(
            f"container {seen['name']} has restart policy {seen['restart']}: Docker and systemd would both start it",
            f"docker update --restart no {seen['name']}",
            container=seen["id"],
        )
    if not seen["running"]:
        return ask.passed(f"{seen['name']} was left by an earlier start; the next start removes it")
    return ask.passed(f"{seen['name']} is ours")


CHECK = Check("container", "Is the container's name free, or ours?", 46, judge)
