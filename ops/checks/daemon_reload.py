"""A unit's change needs `systemctl daemon-reload`, and that can take the GPUs away from other people's containers."""

from ops.checks import Check, Question, Verdict
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts


def judge(ask: Question, facts: Facts, profile: Profile, spec: HostSpec) -> Verdict:
    danger = facts["reload"]
    if danger is None:
        return ask.skipped("no systemd here")
    names = ", ".join(f"{c['name']} ({c['image']})" for c in danger["containers"])
    if not names:
        return ask.passed("no running container could lose its GPUs", **danger)
    if not facts["unit_loaded"]:
        return ask.passed(f"a first unit needs no reload, so {names} keep their GPUs", **danger)
    if not _changes(facts) and not facts["unit_stale"]:
        return ask.passed(f"the units stay as they are, so no reload touches {names}", **danger)
    why = "the new unit" if _changes(facts) else "the unit or a drop-in of it was edited and"
    return ask.failed(
        f"{why} needs `systemctl daemon-reload`, which could take the GPUs away from {names}: Docker's cgroup "
        "driver is systemd and /dev/char has no links for the NVIDIA devices",
        "make the links (nvidia-ctk system create-dev-char-symlinks --create-all), give that container its GPUs by CDI "
        "or --device, or stop it for the deploy",
        **danger,
    )


def _changes(facts: Facts) -> bool:
    """Whether the candidate's unit differs from the one of the release that is there; True when nobody knows."""
    installed = (facts["manifests"].get(facts["links"]["current"]) or {}).get("files", {}).get("engine.service")
    wanted = (facts.get("candidate") or {}).get("files", {}).get("engine.service")
    return installed is None or wanted is None or installed["sha256"] != wanted["sha256"]


CHECK = Check("daemon-reload", "Can the unit change without hurting other GPU containers?", 15, judge)
