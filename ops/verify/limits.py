"""Do the running ranks have the limits that the unit asks for? A container may grant less, without a word."""

from ops.verify import Check, Question, Seen, Verdict

WANTED = {"memlock": -1, "nofile": 1_048_576}
"""Of templates/engine.service.j2; -1 is unlimited."""


def judge(ask: Question, seen: Seen) -> Verdict:
    if seen.facts["supervisor"] != "systemd":
        return ask.skipped("the container gives the limits, not ops")
    if not seen.deployed["limits"]:
        return ask.skipped("no rank runs")
    first = next(iter(seen.deployed["limits"].values()))
    less = [
        f"{name} {soft}"
        for name, (soft, _) in first.items()
        if soft != -1 and (WANTED[name] == -1 or soft < WANTED[name])
    ]
    if less:
        # Not a fail: process 1 of a container cannot give what it has not got, and NCCL over PCIe runs without.
        return ask.passed(
            f"{', '.join(less)}: less than the unit asks for; process 1 of this host may not raise them",
            warning=True,
            limits=first,
        )
    return ask.passed("memlock unlimited, nofile 1048576", limits=first)


CHECK = Check("limits", "Do the ranks have the unit's limits?", 40, judge)
