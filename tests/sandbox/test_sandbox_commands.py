"""`ops sandbox …` as a person and `make demo` call it. If this breaks, the first minute with the project does."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.sandbox.host import Sandbox

pytestmark = pytest.mark.sandbox
Factory = Callable[..., Sandbox]


def ops(project: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "ops", "sandbox", *words],
        env={**os.environ, "OPS_PROJECT": str(project)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def document(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"schema", "command", "outcome", "exit_code", "hosts"} <= set(found)
    return dict(found)


def test_up_status_fault_and_down_tell_one_story(project: Path, sandbox: Factory) -> None:
    up = document(ops(project, "up", "box", "--noise", "off", "--seed", "3", "--time-scale", "20", "--json"))
    host = up["hosts"][0]
    assert (host["host"], host["engine"], host["time_scale"], host["noise"]) == ("box", "SIMULATED", 20, "off")
    again = document(ops(project, "up", "box", "--json"))["hosts"][0]
    assert again == host, "an up without options changed something"
    document(ops(project, "fault", "slow-20-percent", "--on", "eagle3-2step", "--sandbox", "box", "--json"))
    shown = ops(project, "status")
    assert "SIMULATED x 20" in shown.stdout and "slow-20-percent on eagle3-2step" in shown.stdout
    assert document(ops(project, "fault", "--clear", "--sandbox", "box", "--json"))["hosts"][0]["faults"] == []
    assert document(ops(project, "down", "box", "--json"))["hosts"][0]["processes_ended"] == 2
    assert not (project / ".sandbox").exists()
    assert document(ops(project, "down", "box", "--json"))["hosts"] == []


def test_every_fault_is_listed_with_its_meaning(project: Path) -> None:
    listed = ops(project, "fault", "--list", "--json")
    faults = {fault["name"]: fault["description"] for fault in json.loads(listed.stdout)["faults"]}
    assert {"orphan-on-port", "disk-full", "ssh-cut", "reboot", "crash-during-load", "wrong-wiring"} <= set(faults)
    assert all(faults.values())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["fault", "slow-20-percent"], "no sandbox 'sandbox'"),
        (["fault"], "--list"),
        (["status", "nobody"], "no sandbox 'nobody'"),
        (["up", "No/Name"], "cannot be a sandbox's name"),
        (["up", "box", "--noise", "loud"], "neither 'off' nor 'story'"),
        (["up", "box", "--time-scale", "0"], "time_scale"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_made(project: Path, words: list[str], complaint: str) -> None:
    done = ops(project, *words)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert complaint in done.stderr and "Traceback" not in done.stderr
    assert not (project / ".sandbox").exists()
