"""Runtime docker: does the container have the release's environment? `docker restart` keeps that of its creation."""

from ops.verify import Check, Question, Seen, Verdict


def judge(ask: Question, seen: Seen) -> Verdict:
    if seen.manifest["runtime"] != "docker":
        return ask.skipped("the engine does not run in a container")
    container = seen.deployed["container"]
    if container is None:
        return ask.failed("the release's container is not there", "ops logs, then ops restart")
    held = container["environ"]
    stale = {name: held.get(name) for name, value in seen.environment.items() if held.get(name) != value}
    if stale:
        named = ", ".join(f"{name} is {value!r}, wanted {seen.environment[name]!r}" for name, value in stale.items())
        return ask.failed(
            f"the container was created with another environment: {named}",
            "ops restart creates it anew; `docker restart` would keep the old environment",
            stale=stale,
        )
    if not container["running"]:
        return ask.failed("the release's container does not run", "ops logs, then ops restart")
    return ask.passed(f"created with the release's environment from {container['image']}")


CHECK = Check("container", "Was the container created with the release's environment?", 28, judge)
