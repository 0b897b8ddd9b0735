"""The engine's own user must exist, and only root can start something as another user."""

from ops.checks import Check, Question, Verdict
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts


def judge(ask: Question, facts: Facts, profile: Profile, spec: HostSpec) -> Verdict:
    user = profile.run_as
    if user is None or user == facts["user"]:
        return ask.passed(f"the engine runs as {facts['user']}")
    if facts["uid"] != 0:
        return ask.failed(
            f"the engine is to run as {user}, but {facts['user']} cannot start anything as somebody else",
            "set ansible_become: true in the inventory, or remove run_as from the profile",
        )
    if user not in facts["users"]:
        return ask.failed(
            f"the engine is to run as {user}, and there is no such user",
            f"useradd --system --create-home --shell /usr/sbin/nologin {user}",
        )
    return ask.passed(f"the engine runs as {user}")


CHECK = Check("run-as", "Can the engine run as the profile's user?", 22, judge)
