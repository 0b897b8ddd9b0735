"""A measured sandbox host whose baseline serves, and real `ops` processes that deploy to it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from rig import Client, Done, bring_down

from ops.sandbox.host import Sandbox


class GateHost:
    """One project and its host; profile `candidate` is eagle3-2step without the checks in `skip` ({check: reason})."""

    def __init__(self, folder: Path, repository: Path, skip: dict[str, str], time_scale: float) -> None:
        self.project = folder
        shutil.copytree(repository / "envs", folder / "envs")
        self.add("candidate", {"extends": "eagle3-2step", "gates": {"skip": skip}})
        self.box = Sandbox.up("gated", project=folder, time_scale=time_scale, noise="off", load_s=2)
        shutil.copy(self.box.inventory, folder / "envs" / "hosts.yml")

    def add(self, name: str, profile: dict[str, Any]) -> None:
        (self.project / "envs" / "profiles" / f"{name}.yaml").write_text(yaml.safe_dump(profile))

    def ops(self, *argv: str) -> Done:
        return Client([*argv, "--host", "gated", "--json"], self.project).wait(within_s=280)

    def deploy(self, profile: str = "candidate") -> Done:
        return self.ops("deploy", "--profile", profile)

    def link(self, name: str) -> str:
        """The release that a link of the instance names."""
        return (self.box.root / "default" / name).readlink().name

    def heal(self) -> None:
        """No fault, and the baseline serves."""
        self.box.clear_faults()
        if self.ops("status").host["profile"] != "baseline":
            done = self.ops("rollback", "--to", "baseline")
            assert done.code == 0, done.stdout

    @staticmethod
    def first_problem(done: Done) -> str:
        """The check that is named first: failed ones before inconclusive ones."""
        checks: list[dict[str, Any]] = done.host["gate"]["checks"]
        failed = [c["name"] for c in checks if c["outcome"] == "fail"]
        found: str = (failed or [c["name"] for c in checks if c["outcome"] == "inconclusive"])[0]
        return found


@contextmanager
def baseline_serves(folder: Path, repository: Path, skip: dict[str, str], time_scale: float) -> Iterator[GateHost]:
    """A host on which the baseline was deployed; gone afterwards."""
    try:
        made = GateHost(folder, repository, skip, time_scale)
        done = made.deploy("baseline")
        assert done.code == 0, done.stdout
        yield made
    finally:
        bring_down(folder)
