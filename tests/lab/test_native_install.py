"""Runtime native: `ops host install` makes an environment from a lock on a host, and a release runs from it.

When these fail, an upgrade changes the environment that a server runs from, an install that broke off leaves half of
one that looks whole, or a file changed in a venv goes unnoticed.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from . import docker_rig as rig
from .docker_rig import Outcome
from .hosts import Host, Lab
from .machine import REPOSITORY

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

STACKS = "/opt/ops/stacks"


@dataclass(frozen=True)
class Rig:
    """A project with two locked stacks, and a host with systemd that keeps environments."""

    project: Path
    host: Host

    def ops(self, *words: str) -> Outcome:
        return rig.run_ops(self.project, *words)

    def folder(self, stack: str) -> str:
        document = rig.done(self.ops("stack", "list", "--json")).document
        digest = next(row["lock_sha256"] for row in document["stacks"] if row["name"] == stack)
        return f"{STACKS}/{stack}-{digest[:12]}"


@pytest.fixture(scope="module")
def native(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    project = rig.lab_project(tmp_path_factory.mktemp("native"), base=None, repository="engine")
    rig.write_stack(project / "envs" / "stacks", "next", base=None, repository="engine", marker="the next build")
    rig.use_stack(project, "baseline", stack="lab")
    host = lab.host(f"systemd-native-{time.time_ns()}", "systemd")
    try:
        rig.inventory(project, {"gpu-a": host}, ops_stacks=STACKS)
        found = Rig(project, host)
        for stack in ("lab", "next"):
            rig.done(found.ops("stack", "lock", stack))
        yield found
    finally:
        lab.remove(host)


def simulation(found: Rig, stack: str) -> None:
    """Show the engine its settings: they are looked for under the prefix of the Python that runs it."""
    found.host.exec("ln", "-sfn", "/opt/sglang/venv/simulation", f"{found.folder(stack)}/simulation")


def interpreter(found: Rig) -> str:
    """The program that systemd runs as the engine."""
    pid = found.host.exec("systemctl", "show", "-P", "MainPID", "sglang-default").strip()
    return found.host.exec("cat", f"/proc/{pid}/cmdline").split("\0")[0]


def test_an_environment_that_is_missing_is_refused_with_the_command_that_makes_it(native: Rig) -> None:
    refused = native.ops("deploy", "--profile", "baseline", "--host", "gpu-a")

    assert refused.code == 2
    assert "is not installed on this host" in refused.text
    assert "ops host install --stack lab --host gpu-a" in refused.text


def test_an_install_that_broke_off_goes_on_and_is_proven(native: Rig) -> None:
    command = (str(REPOSITORY / ".venv/bin/ops"), "host", "install", "--stack", "lab", "--host", "gpu-a")
    folder = native.folder("lab")
    with subprocess.Popen(command, cwd=native.project, stderr=subprocess.PIPE, text=True) as broken:
        for line in broken.stderr or ():
            if "fetching" in line or "installing" in line:
                break
        broken.send_signal(signal.SIGKILL)
    assert native.host.exec("ls", f"{folder}/ops-complete.json", check=False) == "", "half an environment is not whole"

    installed = rig.done(
        native.ops("host", "install", "--stack", "lab", "--host", "gpu-a", "--profile", "baseline", "--json")
    )

    row = installed.document["hosts"][0]
    assert row["outcome"] == "installed"
    assert {check["name"]: check["outcome"] for check in row["checks"]} == {
        **{"packages": "pass", "python": "pass", "flags": "pass"},
    }
    again = rig.done(native.ops("host", "install", "--stack", "lab", "--host", "gpu-a", "--json"))
    assert again.document["hosts"][0]["outcome"] == "unchanged"


def test_a_release_runs_from_the_environment_and_a_changed_file_in_it_is_named(native: Rig) -> None:
    rig.done(native.ops("host", "install", "--stack", "lab", "--host", "gpu-a"))
    simulation(native, "lab")
    rig.done(native.ops("deploy", "--profile", "baseline", "--host", "gpu-a"))
    assert interpreter(native) == f"{native.folder('lab')}/bin/python"
    rig.done(native.ops("verify", "--host", "gpu-a"))

    file = f"{native.folder('lab')}/lib/python3.11/site-packages/h11-0.16.0.dist-info/METADATA"
    native.host.exec("sed", "-i", "s/^Version: 0.16.0/Version: 0.14.0/", file)
    try:
        swapped = native.ops("verify", "--host", "gpu-a")
    finally:
        native.host.exec("sed", "-i", "s/^Version: 0.14.0/Version: 0.16.0/", file)

    assert swapped.code == 6
    assert "h11: 0.14.0 is installed, 0.16.0 is locked" in swapped.text


def test_the_next_environment_is_a_new_folder_and_the_old_one_goes_on_serving(native: Rig) -> None:
    rig.done(native.ops("host", "install", "--stack", "lab", "--host", "gpu-a"))
    simulation(native, "lab")
    rig.done(native.ops("deploy", "--profile", "baseline", "--host", "gpu-a"))
    before = native.host.exec("systemctl", "show", "-P", "MainPID", "sglang-default")

    rig.done(native.ops("host", "install", "--stack", "next", "--host", "gpu-a"))

    assert native.host.exec("systemctl", "show", "-P", "MainPID", "sglang-default") == before
    rig.done(native.ops("verify", "--host", "gpu-a"))
    simulation(native, "next")
    rig.use_stack(native.project, "baseline", stack="next")
    rig.done(native.ops("deploy", "--profile", "baseline", "--host", "gpu-a"))
    assert interpreter(native).startswith(native.folder("next"))
    rig.done(native.ops("rollback", "--host", "gpu-a"))
    assert interpreter(native).startswith(native.folder("lab"))
    kept = native.host.exec("ls", STACKS).split()
    assert {native.folder("lab").rpartition("/")[2], native.folder("next").rpartition("/")[2]} <= set(kept)
    proofs = json.loads(native.host.exec("cat", f"{STACKS}/proofs/{native.folder('next').rpartition('/')[2]}.json"))
    assert proofs["outcome"] == "pass"


def test_the_install_playbook_makes_the_environment_once_and_check_mode_makes_none(native: Rig) -> None:
    rig.use_stack(native.project, "baseline", stack="next")
    folder = native.folder("next")
    native.host.exec("rm", "-rf", folder)

    foretold = install_playbook(native, "--check")
    assert "changed=1" in foretold and f"would make the environment {folder}" in foretold
    assert native.host.exec("ls", folder, check=False) == ""

    assert "changed=1" in install_playbook(native)
    assert json.loads(native.host.exec("cat", f"{folder}/ops-complete.json"))["stack"] == "next"
    assert "changed=0" in install_playbook(native)


def install_playbook(found: Rig, *words: str) -> str:
    """Run `install.yml` for the baseline and return what it printed."""
    command = (REPOSITORY / ".venv/bin/ansible-playbook", "-v", "-i", "envs/hosts.yml")
    playbook = REPOSITORY / "playbooks/install.yml"
    done = subprocess.run(
        [*command, playbook, "-e", "profile=baseline", *words],
        cwd=found.project,
        env=os.environ | {"ANSIBLE_CONFIG": str(REPOSITORY / "playbooks/ansible.cfg")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
