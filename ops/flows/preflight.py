"""Ask every preflight check before anything is touched."""

import importlib
import pkgutil
from collections.abc import Sequence

import ops.checks
from ops.checks import Check, Question
from ops.errors import PreflightFailed
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts
from ops.model.verdict import Verdict, not_passed


def checks() -> list[Check]:
    """Every check in `ops/checks/`, in their order."""
    found = [
        importlib.import_module(f"ops.checks.{module.name}").CHECK
        for module in pkgutil.iter_modules(ops.checks.__path__)
    ]
    return sorted(found, key=lambda check: (check.order, check.name))


def ask(profile: Profile, spec: HostSpec, facts: Facts) -> list[Verdict]:
    """Judge the host as it is; nothing is touched. `facts` has the release's manifest as `candidate` where there is
    one."""
    return [check.judge(Question(check.name, check.question), facts, profile, spec) for check in checks()]


def warnings(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """What passed, and a person should know all the same."""
    return [verdict for verdict in verdicts if verdict.passed and verdict.evidence.get("warning")]


def require(verdicts: Sequence[Verdict], host: str) -> None:
    """Raises: PreflightFailed naming every check that did not pass."""
    problems = not_passed(verdicts)
    if problems:
        raise PreflightFailed(
            "nothing was touched; " + "; ".join(f"{v.name}: {v.message}" for v in problems),
            hint=problems[0].remedy,
            host=host,
        )
