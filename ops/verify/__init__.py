"""What `ops verify` asks of a deployed release: one file a question, found by file name (constant CHECK). Read only.

A gate asks whether an engine may take traffic; these ask whether what was deployed is still what is there, and will be
there after the next boot.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ops.errors import ConfigError
from ops.model.ports import Host
from ops.model.profile import SECRET_FLAGS
from ops.model.state import Facts, profile_name
from ops.model.verdict import Question, Verdict
from ops.run import observe, software_answer, supervisor_of

__all__ = ["Check", "Question", "Seen", "Verdict", "all_checks", "ask", "look"]


@dataclass(frozen=True)
class Seen:
    """What was found on one host.

    Attributes:
        facts: `facts.observe`, with GPUs. deployed: `deployed.look`. manifest: of the current release.
    """

    facts: Facts
    deployed: Mapping[str, Any]
    manifest: Mapping[str, Any]

    @property
    def release(self) -> str:
        """Id of the current release."""
        return str(self.deployed["release"])

    @property
    def environment(self) -> dict[str, str]:
        """What every process of the engine must hold. PATH finds programs, and an engine may extend it."""
        return {name: value for name, value in self.manifest["environment"].items() if name != "PATH"}

    @property
    def ranks(self) -> list[Mapping[str, Any]]:
        """The scheduler processes of this release: one a GPU."""
        processes = self.facts["processes"]
        return [p for p in processes if p["title"].startswith("sglang::scheduler") and p["release"] == self.release]


Judge = Callable[[Question, Seen], Verdict]


@dataclass(frozen=True)
class Check:
    """One question. `order`: what the others build on first."""

    name: str
    question: str
    order: int
    judge: Judge


def all_checks() -> list[Check]:
    """Every check in this folder, in order.

    Raises: TypeError when a file has no CHECK; ValueError when its name is not the file's.
    """
    found: list[Check] = []
    for module in pkgutil.iter_modules(__path__):
        check = getattr(importlib.import_module(f"{__name__}.{module.name}"), "CHECK", None)
        if not isinstance(check, Check):
            raise TypeError(f"ops/verify/{module.name}.py has no constant CHECK")
        if check.name.replace("-", "_") != module.name:
            raise ValueError(f"ops/verify/{module.name}.py holds the check {check.name}")
        found.append(check)
    return sorted(found, key=lambda check: (check.order, check.name))


def ask(seen: Seen) -> list[Verdict]:
    """Answer every question from what was seen."""
    return [check.judge(Question(check.name, check.question), seen) for check in all_checks()]


def look(host: Host) -> tuple[Facts, list[Verdict]]:
    """Look at a host and answer every question. Raises: ConfigError when nothing is deployed there."""
    facts = observe(host, gpus=True)
    release = facts["links"]["current"]
    if release is None:
        raise ConfigError("nothing is deployed here", hint="ops deploy --profile <profile>", host=host.name)
    manifest = facts["manifests"].get(release)
    if manifest is None:
        raise ConfigError(
            f"release {release} has no manifest on the host",
            hint=f"deploy the profile again: ops deploy --profile {profile_name(release)}",
            host=host.name,
        )
    deployed: dict[str, Any] = host.call(
        "deployed.look",
        instance_dir=host.spec.instance_dir,
        supervisor=supervisor_of(host),
        secrets={release: [*manifest["secrets"], *SECRET_FLAGS]},
        wait_s=60.0,
    )
    seen = {**facts, "software_answer": software_answer(host, manifest)}
    return facts, ask(Seen(seen, deployed, manifest))
