"""Variables in login files reach a person's terminal and never the service; whoever wrote them believes otherwise."""

from ops.checks import Check, Question, Verdict
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts


def judge(ask: Question, facts: Facts, profile: Profile, spec: HostSpec) -> Verdict:
    lines = facts["login_files"]
    if not lines:
        return ask.passed("no NCCL_, CUDA_, HF_ or SGLANG_ variables in login files")
    first = lines[0]
    what = f"{first['path']}:{first['line']} sets `{first['text']}`"
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return ask.passed(
        f"{what}{more}: a terminal gets that, the engine gets what the profile says",
        warning=True,
        lines=lines,
    )


CHECK = Check("login-files", "Does nobody rely on variables in login files?", 80, judge)
