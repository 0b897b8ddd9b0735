"""A host whose clock is wrong dates its journal wrongly, and cannot fetch anything over TLS."""

from ops.checks import Check, Question, Verdict
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts

MAX_SKEW_S = 120.0
"""Far beyond what NTP leaves, and what one slow answer over SSH can explain."""


def judge(ask: Question, facts: Facts, profile: Profile, spec: HostSpec) -> Verdict:
    skew_s = round(facts["time"] - facts["observed_at"], 1)
    if abs(skew_s) > MAX_SKEW_S:
        which = "ahead of" if skew_s > 0 else "behind"
        return ask.failed(
            f"its clock is {abs(skew_s):.0f} s {which} the clock here",
            "find out which of the two is wrong (`timedatectl`), and let NTP correct it",
            skew_s=skew_s,
        )
    return ask.passed(f"{skew_s:+.1f} s against the clock here", skew_s=skew_s)


CHECK = Check("clock", "Does the host's clock agree with ours?", 12, judge)
