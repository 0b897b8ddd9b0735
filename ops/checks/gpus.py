"""As many GPUs as the model has ranks, and none of their memory held by somebody else."""

from collections.abc import Mapping
from typing import Any

from ops.checks import Check, Question, Verdict
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts


def judge(ask: Question, facts: Facts, profile: Profile, spec: HostSpec) -> Verdict:
    gpus = facts["gpus"]
    if profile.engine.flags.get("device") == "cpu":
        return ask.skipped("the profile runs on the CPU")
    if gpus is None:
        return ask.failed(
            f"nvidia-smi does not answer: {facts.get('gpu_problem') or 'no output'}",
            "install or repair the driver; name its folder in ops_search_path if it is elsewhere",
        )
    engine = profile.engine
    needed = spec.ranks(engine.ranks)
    if len(gpus["devices"]) < needed:
        more = "" if engine.ranks == engine.tensor_parallel else ", pipeline stages and replicas counted"
        return ask.failed(
            f"{len(gpus['devices'])} GPUs, but tensor parallel over {needed}{more}"
            + (" on each host" if spec.node else ""),
            "choose another host, or change engine.tensor_parallel" + (" (or pp-size, dp-size)" if more else ""),
        )
    ours = {process["pid"] for process in facts["processes"]}
    foreign = [h for h in gpus["holders"] if h["pid"] not in ours and h.get("state") != "Z"]  # `zombies` tells of those
    if foreign:
        named = ", ".join(f"{_owner(h)} holds {h['used_mib']} MiB of {h['gpu_uuid']}" for h in foreign)
        return ask.failed(
            f"GPU memory is held by processes that are not ours: {named}",
            "stop them yourself if they may go; ops never kills what it does not own",
            foreign=foreign,
        )
    return ask.passed(f"{len(gpus['devices'])} x {gpus['devices'][0]['name']}")


def _owner(holder: Mapping[str, Any]) -> str:
    """Name a process for a person: pid, user, how long it runs; one that is not here may be in another container."""
    if not holder.get("user"):
        return f"pid {holder['pid']} ({holder['process_name']}; no such process here: another container's, or gone)"
    hours, minutes = divmod(round(holder.get("age_s") or 0) // 60, 60)
    return f"pid {holder['pid']} of {holder['user']} ({holder['process_name']}, running {hours} h {minutes} min)"


CHECK = Check("gpus", "Are the GPUs there, and free but for us?", 50, judge)
