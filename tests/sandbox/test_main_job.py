"""The main job, as a user types it: if this fails, the README's first command does not do what it says."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.sandbox.host import Sandbox

pytestmark = [pytest.mark.sandbox, pytest.mark.timing, pytest.mark.timeout(300)]


class Cli:
    """`ops` as a subprocess in a copy of the project, against one sandbox."""

    def __init__(self, project: Path, box: Sandbox) -> None:
        self.project = project
        self.environment = {
            **os.environ,
            "OPS_PROJECT": str(project),
            "OPS_INVENTORY": str(box.inventory),
            "OPS_HOST": box.name,
        }

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ops", *words],
            env=self.environment,
            cwd=self.project,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )

    def json(self, *words: str) -> dict[str, Any]:
        done = self.run(*words, "--json")
        document: dict[str, Any] = json.loads(done.stdout)
        assert document["exit_code"] == done.returncode, done.stderr
        return document


@pytest.fixture
def cli(project: Path, repository: Path, sandbox: Callable[..., Sandbox]) -> Cli:
    shutil.copytree(repository / "envs", project / "envs", dirs_exist_ok=True)
    return Cli(project, sandbox("main", time_scale=5, noise="off"))


def marked(box_root: Path) -> set[int]:
    """Pids that carry the instance's marker, read from outside."""
    marker = f"OPS_INSTANCE_DIR={box_root / 'default'}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
            except (OSError, PermissionError):
                continue
    return found


def test_a_profile_is_deployed_proved_and_replaced_and_the_old_process_is_gone(cli: Cli) -> None:
    box = Sandbox.open("main", project=cli.project)

    deployed = cli.json("deploy", "--profile", "eagle3-2step")
    assert deployed["outcome"] == "deployed", json.dumps(deployed, indent=1)
    host = deployed["hosts"][0]
    assert host["gate"]["verdict"] == "pass"
    checks = {check["name"]: check["outcome"] for check in host["gate"]["checks"]}
    assert checks["speed"] == checks["acceptance"] == checks["environment"] == "pass"
    first = marked(box.root)
    assert len(first) == 10, "launcher, 8 ranks, detokenizer"

    status = cli.json("status")["hosts"][0]
    assert (status["state"], status["profile"], status["release"]) == ("serving", "eagle3-2step", host["release"])
    assert status["admitted"] and status["environment"] == {"verdict": "ok", "ranks": 8, "missing": []}
    assert status["simulated"] == "x 5"

    again = cli.json("deploy", "--profile", "eagle3-2step")
    assert (again["outcome"], again["hosts"][0]["changed"]) == ("unchanged", False)
    assert marked(box.root) == first

    replaced = cli.json("deploy", "--profile", "baseline")
    assert replaced["outcome"] == "deployed", json.dumps(replaced, indent=1)
    assert not first & marked(box.root), "a process of the replaced release lives on"
    assert cli.json("status")["hosts"][0]["profile"] == "baseline"

    back = cli.json("rollback")
    assert (back["outcome"], back["hosts"][0]["release"]) == ("rolled-back", host["release"])

    stopped = cli.json("stop")
    assert stopped["outcome"] == "stopped"
    assert marked(box.root) == set()
    assert box.gpu_holders() == []
    assert cli.json("status")["hosts"][0]["state"] == "stopped"
