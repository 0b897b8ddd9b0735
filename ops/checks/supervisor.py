"""Without its supervisor nothing would keep the server alive, and nobody would undo a failed deploy."""

from ops.checks import Check, Question, Verdict
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts


def judge(ask: Question, facts: Facts, profile: Profile, spec: HostSpec) -> Verdict:
    if facts["supervisor_problem"]:
        return ask.failed(
            f"{facts['supervisor']}: {facts['supervisor_problem']}",
            "start supervisord, or name its configuration in the inventory (ops_supervisor_conf)"
            if facts["supervisor"] == "supervisord"
            else "look at `systemctl status` on the host",
        )
    return ask.passed(facts["supervisor"])


CHECK = Check("supervisor", "Does the host's supervisor answer?", 10, judge)
