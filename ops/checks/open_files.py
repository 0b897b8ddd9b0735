"""Under supervisord the engine inherits the limits of the container; too few open files end in refused connections."""

from ops.checks import Check, Question, Verdict
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts

SPARE_FILES = 1024
"""Shared libraries, weight shards and sockets between the ranks, with margin."""


def judge(ask: Question, facts: Facts, profile: Profile, spec: HostSpec) -> Verdict:
    if facts["supervisor"] == "systemd":
        return ask.passed("the unit sets LimitNOFILE and LimitMEMLOCK itself")
    soft, hard = facts["limits"]["nofile"]
    needed = (
        SPARE_FILES + 2 * profile.engine.max_running_requests if profile.engine.max_running_requests else SPARE_FILES
    )
    if hard != -1 and hard < needed:
        return ask.failed(
            f"{hard} open files are allowed at most, the engine needs {needed}",
            "start the container with --ulimit nofile=1048576:1048576",
            nofile=[soft, hard],
        )
    return ask.passed(f"{hard} open files are allowed (guard.sh raises the soft limit)", nofile=[soft, hard])


CHECK = Check("open-files", "May the engine open enough files?", 25, judge)
