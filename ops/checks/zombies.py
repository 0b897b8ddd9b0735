"""Where process 1 reaps nobody, ended engines stay as zombies; a GPU's memory behind one only a reboot gives back."""

from ops.checks import Check, Question, Verdict
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts

MANY = 200
"""So many unreaped processes mean that nobody reaps at all, and the process table fills up with every restart."""


def judge(ask: Question, facts: Facts, profile: Profile, spec: HostSpec) -> Verdict:
    zombies = facts["zombies"]
    holding = [h for h in (facts["gpus"] or {}).get("holders", ()) if h.get("state") == "Z"]
    if holding:
        named = ", ".join(f"pid {h['pid']} ({h['process_name']}, parent {h['ppid']})" for h in holding)
        return ask.failed(
            f"GPU memory is held behind ended processes: {named}",
            "end the parent that does not reap them; when it is process 1, reboot the host or restart the container",
            zombies=holding,
        )
    if len(zombies) >= MANY:
        parent = zombies[0]["parent"] or f"pid {zombies[0]['ppid']}"
        return ask.failed(
            f"{len(zombies)} ended processes were never reaped; the parent of the first is {parent}",
            "start the container with an init that reaps (docker run --init)",
            count=len(zombies),
        )
    return ask.passed(f"{len(zombies)} unreaped processes", count=len(zombies))


CHECK = Check("zombies", "Is nothing left of ended engines?", 55, judge)
