"""What differs between versions of the engine, one file a range of versions.

Everything else that reads the engine (`ops.engine.log`, `ops.gates`, `ops.remote.probe`) takes whatever any covered
version says; what cannot be read alike is asked here. Each range names the recordings that prove it, and
`tests/contract/test_engine_versions.py` holds it to them. Adding one: docs/adding-an-engine-version.md.
"""

import importlib
import pkgutil
import re
from dataclasses import dataclass
from functools import cache

RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)")


@dataclass(frozen=True)
class Rules:
    """How one range of versions speaks.

    Attributes:
        since, before: the range: `since` belongs to it, `before` does not; None: open.
        recordings: folders of `tests/recordings` that prove it.
        ready: `/ready` exists; without it only `/health` says "serving", and costs a generation.
        launch_command: `/server_info` holds the command line that the engine was started with.
        first_token_latency: `meta_info` tells the time to the first token.
        sigterm_exit: exit status after SIGTERM, idle (negative: the signal by which it ended itself).
    """

    since: str
    before: str | None
    recordings: tuple[str, ...]
    ready: bool
    launch_command: bool
    first_token_latency: bool
    sigterm_exit: int

    def covers(self, version: str) -> bool:
        """Whether `version` is in the range. False for what is no version."""
        found = release(version)
        return bool(found) and release(self.since) <= found and (self.before is None or found < release(self.before))


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version (0.5.23.post1 is 0.5.23); empty for what is none."""
    found = RELEASE.match(version)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


@cache
def all_rules() -> tuple[Rules, ...]:
    """Every range, oldest first. Raises: TypeError when a file here has no constant RULES."""
    found = []
    for module in pkgutil.iter_modules(__path__):
        rules = getattr(importlib.import_module(f"{__name__}.{module.name}"), "RULES", None)
        if not isinstance(rules, Rules):
            raise TypeError(f"ops/engine/versions/{module.name}.py has no constant RULES")
        found.append(rules)
    return tuple(sorted(found, key=lambda rules: release(rules.since)))


def rules_of(version: object) -> Rules | None:
    """The rules of a version as the engine or a stack names it; None when no range covers it."""
    return next((rules for rules in all_rules() if rules.covers(str(version))), None)
