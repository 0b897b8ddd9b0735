"""Runtime docker on a host with systemd and its own Docker daemon, over a registry and without one.

When these fail, an operator runs something else than what was locked, loses the environment in a restart, or finds out
in the middle of a rollback that the image to go back to is gone.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from . import docker_rig as rig
from .conftest import MakeHost
from .docker_rig import Outcome, Registry
from .hosts import Host, Lab
from .images import ensure_image
from .machine import docker

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

CONTAINER = "sglang-default"
SIMULATION = {"/opt/sglang/venv/simulation": "/opt/sglang/simulation"}
WITHOUT_GPU = {"ops_container_gpus": "none", "ops_container_ulimits": [], "ops_container_mounts": SIMULATION}
"""The lab has no GPU, and its root may not raise limits; the simulated engine keeps its settings in that folder."""


@dataclass(frozen=True)
class Deployed:
    """A project with a locked and built stack, the registry that holds its image, and a host that reaches it."""

    project: Path
    registry: Registry
    host: Host

    def ops(self, *words: str) -> Outcome:
        return rig.run_ops(self.project, *words)

    def image(self, stack: str) -> str:
        document = json.loads((self.project / "envs" / "stacks" / f"{stack}.image.json").read_text())
        return str(document["id"])

    def container(self, template: str) -> str:
        return self.host.exec("docker", "inspect", "--format", template, CONTAINER).strip()


@pytest.fixture(scope="module")
def built(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Registry]]:
    """A project whose stack `lab` is locked and built."""
    project = tmp_path_factory.mktemp("project")
    with rig.registry(lab, f"registry-{time.time_ns()}") as registry:
        rig.pushed_digest(registry, ensure_image("base"), "base:bookworm")
        base: dict[str, str | None] = {"repository": f"{registry.local}/base", "tag": "bookworm", "digest": None}
        rig.lab_project(project, base=base, repository=f"{registry.local}/engine")
        stacks = project / "envs" / "stacks"
        (project / "envs" / "hosts.yml").write_text("all:\n  hosts:\n    sandbox:\n      ansible_host: 127.0.0.1\n")
        rig.use_stack(project, "baseline", stack="lab", runtime="docker")
        for profile in ("eagle3-1step", "eagle3-2step", "eagle3-3step"):
            rig.use_stack(project, profile)
        rig.done(rig.run_ops(project, "stack", "lock", "lab"))
        rig.done(rig.run_ops(project, "image", "build", "lab"))
        yield project, registry
        image = json.loads((stacks / "lab.image.json").read_text())["id"]
        docker("rmi", "--force", image, check=False)


@pytest.fixture(scope="module")
def deployed(lab: Lab, built: tuple[Path, Registry]) -> Iterator[Deployed]:
    """A host that runs `baseline` from the stack `lab`, pulled from the registry by digest."""
    project, registry = built
    host = lab.host(f"docker-runtime-{time.time_ns()}", "docker")
    try:
        rig.reachable(host, registry)
        rig.inventory(project, {"gpu-a": host}, **WITHOUT_GPU)
        found = Deployed(project, registry, host)
        rig.done(found.ops("image", "push", "lab"))
        rig.done(found.ops("deploy", "--profile", "baseline", "--host", "gpu-a"))
        yield found
    finally:
        lab.remove(host)


def until(holds: Callable[[], bool], what: str, deadline_s: float = 60) -> None:
    deadline = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {deadline_s} s: {what}"
        time.sleep(0.5)


def good_again(deployed: Deployed) -> None:
    """The release serves and is as it was deployed; `ops restart` makes it so after a test that broke it."""
    rig.done(deployed.ops("restart", "--host", "gpu-a"))
    rig.done(deployed.ops("verify", "--host", "gpu-a"))


# -- build and lock ----------------------------------------------------------------------------------------------------


def test_a_tag_that_moved_in_the_registry_is_named_with_both_digests(built: tuple[Path, Registry]) -> None:
    project, registry = built
    before = rig.done(rig.run_ops(project, "stack", "check", "lab"))
    assert "locked: 9 packages" in before.out
    locked = json.loads((project / "envs" / "stacks" / "lab.lock").read_text())["base"]["digest"]
    moved = rig.pushed_digest(registry, ensure_image("registry"), "base:bookworm")
    try:
        after = rig.run_ops(project, "stack", "check", "lab")
    finally:
        assert rig.pushed_digest(registry, ensure_image("base"), "base:bookworm") == locked

    assert after.code == 6
    assert f"was moved: it is {moved} now, {locked} is locked" in after.text


def test_an_image_is_refused_when_one_version_in_the_lock_changed(built: tuple[Path, Registry]) -> None:
    project, _ = built
    lock = project / "envs" / "stacks" / "lab.lock"
    before = lock.read_bytes()
    lock.write_bytes(before.replace(b'"name": "h11", "version": "0.16.0"', b'"name": "h11", "version": "0.15.9"'))
    assert lock.read_bytes() != before
    try:
        changed = rig.run_ops(project, "image", "verify", "lab")
    finally:
        lock.write_bytes(before)

    assert changed.code == 6
    assert "h11: 0.16.0 is installed, 0.15.9 is locked" in changed.text
    assert rig.done(rig.run_ops(project, "image", "verify", "lab", "--profile", "baseline")).code == 0


def test_an_image_with_a_changed_layer_is_refused_by_name_of_the_file(built: tuple[Path, Registry]) -> None:
    project, _ = built
    note = project / "envs" / "stacks" / "lab.image.json"
    before = note.read_text()
    image = json.loads(before)["id"]
    file = "/opt/sglang/lib/python3.11/site-packages/h11/_events.py"
    container = docker("create", "--user", "0", image, "sh", "-c", f"echo '# faster' >>{file}").strip()
    try:
        docker("start", "--attach", container)
        changed = docker("commit", "--change", "USER 10001:10001", container).strip()
        note.write_text(before.replace(image, changed))
        refused = rig.run_ops(project, "image", "verify", "lab")
        docker("rmi", "--force", changed)
    finally:
        note.write_text(before)
        docker("rm", "--force", container)

    assert refused.code == 6
    assert "h11: h11/_events.py was changed after it was installed" in refused.text


def test_the_engines_own_parser_refuses_a_flag_before_anything_is_deployed(built: tuple[Path, Registry]) -> None:
    project, _ = built
    good = rig.done(rig.run_ops(project, "image", "verify", "lab", "--profile", "eagle3-2step"))
    assert "flags: pass" in good.out
    path = project / "envs" / "profiles" / "eagle3-1step.yaml"
    before = path.read_text()
    # Each value alone is one that `ops` takes; the engine's parser takes the second for a flag.
    path.write_text(before + "engine:\n  flags:\n    log-requests-target: [stdout, --no-such-flag]\n")
    try:
        refused = rig.run_ops(project, "image", "verify", "lab", "--profile", "eagle3-1step")
    finally:
        path.write_text(before)

    assert refused.code == 6
    assert "flags: fail: the engine refuses the command line:" in refused.out
    assert "error: unrecognized arguments: --no-such-flag (exit 2)" in refused.out


# -- deploy, reboot, roll back -----------------------------------------------------------------------------------------


def test_an_image_is_deployed_by_digest_survives_a_reboot_and_is_rolled_back(deployed: Deployed) -> None:
    first = deployed.container("{{.Id}}")
    assert deployed.container("{{.Image}}") == deployed.image("lab")
    assert deployed.container("{{.Config.Image}}") == deployed.image("lab"), "never a tag"

    rig.done(deployed.ops("deploy", "--profile", "eagle3-2step", "--host", "gpu-a"))
    assert deployed.container("{{.Id}}") != first, "another environment is another container"
    policy = deployed.container("{{.HostConfig.RestartPolicy.Name}} {{.HostConfig.AutoRemove}}")
    assert policy == "no true", "systemd starts it again, and nobody else"

    deployed.host.reboot()
    until(lambda: deployed.ops("verify", "--host", "gpu-a").code == 0, "the release is back after the reboot", 120)
    rolled = rig.done(deployed.ops("rollback", "--host", "gpu-a", "--json"))

    assert rolled.document["hosts"][0]["profile"] == "baseline"
    assert deployed.container("{{.Image}}") == deployed.image("lab")
    rig.done(deployed.ops("verify", "--host", "gpu-a"))


def test_a_moved_tag_on_the_host_changes_nothing(deployed: Deployed) -> None:
    document = json.loads((deployed.project / "envs/stacks/lab.image.json").read_text())
    name = f"{document['repository']}:{document['tag']}"
    deployed.host.exec("sh", "-c", f"printf 'FROM scratch\nLABEL a=b\n' | docker build --quiet --tag {name} -")

    good_again(deployed)

    assert deployed.container("{{.Image}}") == deployed.image("lab")


def test_a_package_swapped_inside_the_running_container_is_named(deployed: Deployed) -> None:
    site = "/opt/sglang/lib/python3.11/site-packages"
    swap = f"cd {site} && sed -i s/0.16.0/0.14.0/ h11-0.16.0.dist-info/METADATA"
    deployed.host.exec("docker", "exec", "--user", "0", CONTAINER, "sh", "-c", swap)
    try:
        verified = deployed.ops("verify", "--host", "gpu-a")
        gated = deployed.ops("gate", "--host", "gpu-a")
    finally:
        good_again(deployed)

    assert verified.code == 6
    assert "h11: 0.14.0 is installed, 0.16.0 is locked" in verified.text
    assert gated.code == 6
    assert "h11: 0.14.0 is installed, 0.16.0 is locked" in gated.text


def test_docker_restart_with_a_changed_env_file_is_seen(deployed: Deployed) -> None:
    file = "/opt/ops/default/current/engine.env"
    before = deployed.host.exec("cat", file)
    assert "NCCL_PROTO=LL\n" in before
    deployed.host.exec("sed", "-i", "s/^NCCL_PROTO=LL$/NCCL_PROTO=Simple/", file)
    started = deployed.container("{{.State.StartedAt}}")
    deployed.host.exec("docker", "restart", CONTAINER, check=False, timeout_s=60)
    try:
        until(lambda: _started(deployed) not in ("", started), "the container was started again")
        seen = deployed.ops("verify", "--host", "gpu-a")
    finally:
        deployed.host.exec("sh", "-c", f"cat >{file}", stdin=before.encode())
        good_again(deployed)

    assert seen.code == 6
    assert "engine.env" in seen.text


def test_a_container_left_by_a_kill_is_understood_and_replaced(deployed: Deployed) -> None:
    left = deployed.container("{{.Id}}")
    pid = deployed.host.exec("systemctl", "show", "-P", "MainPID", "sglang-default").strip()
    deployed.host.exec("kill", "-KILL", pid)

    until(lambda: _id(deployed) not in ("", left), "another container of the same name runs")
    until(lambda: deployed.ops("verify", "--host", "gpu-a").code == 0, "the release serves again", 120)
    names = deployed.host.exec("docker", "ps", "--all", "--format", "{{.Names}}").split()
    assert names == [CONTAINER]


def test_a_stopped_container_of_the_instance_is_removed_by_the_next_start(deployed: Deployed) -> None:
    rig.done(deployed.ops("stop", "--host", "gpu-a"))
    label = "--label=ops.instance-dir=/opt/ops/default"
    deployed.host.exec("docker", "create", "--name", CONTAINER, label, deployed.image("lab"), "true")

    rig.done(deployed.ops("start", "--host", "gpu-a"))

    log = deployed.ops("logs", "--host", "gpu-a", "--lines", "400").out
    assert f"removing container {CONTAINER}, which an earlier start left" in log


def test_a_container_of_somebody_else_with_that_name_is_left_alone(deployed: Deployed) -> None:
    rig.done(deployed.ops("stop", "--host", "gpu-a"))
    foreign = deployed.host.exec("docker", "create", "--name", CONTAINER, deployed.image("lab"), "true").strip()
    try:
        refused = deployed.ops("deploy", "--profile", "eagle3-2step", "--host", "gpu-a")
        still = _id(deployed)
    finally:
        deployed.host.exec("docker", "rm", CONTAINER)
        rig.done(deployed.ops("start", "--host", "gpu-a"))

    assert refused.code == 2
    assert f"the name {CONTAINER} belongs to a container that this instance did not start" in refused.text
    assert still == foreign


def test_a_missing_rollback_image_is_refused_before_anything_is_touched(deployed: Deployed) -> None:
    """The registry could still be asked for the candidate; the way back must not depend on that."""
    note = deployed.project / "envs" / "stacks" / "lab.image.json"
    before, running = note.read_text(), deployed.container("{{.Id}}")
    note.write_text(before.replace(deployed.image("lab"), "sha256:" + "0" * 64))
    try:
        refused = deployed.ops("deploy", "--profile", "eagle3-3step", "--host", "gpu-a")
    finally:
        note.write_text(before)

    assert refused.code == 2
    assert "image 000000000000 of the fallback is not on this host: a rollback would fail" in refused.text
    assert "ops image push lab --to gpu-a" in refused.text
    assert deployed.container("{{.Id}}") == running


def test_a_host_without_a_registry_gets_the_image_over_ssh_with_its_id_checked(
    built: tuple[Path, Registry], make_host: MakeHost
) -> None:
    project, _ = built
    host = make_host("docker")
    rig.inventory(project, {"gpu-b": host}, **WITHOUT_GPU)
    rig.use_stack(project, "baseline", stack="lab", runtime="docker")
    image = json.loads((project / "envs/stacks/lab.image.json").read_text())["id"]
    before = rig.run_ops(project, "deploy", "--profile", "baseline", "--host", "gpu-b")
    assert before.code in (2, 3), "there is neither the image nor a registry that has it"

    sent = rig.done(rig.run_ops(project, "image", "push", "lab", "--to", "gpu-b"))

    assert "its id checked" in sent.text
    assert host.exec("docker", "image", "inspect", "--format", "{{.Id}}", image).strip() == image
    rig.done(rig.run_ops(project, "deploy", "--profile", "baseline", "--host", "gpu-b"))
    assert host.exec("docker", "inspect", "--format", "{{.Image}}", CONTAINER).strip() == image


def _id(deployed: Deployed) -> str:
    return deployed.host.exec("docker", "inspect", "--format", "{{.Id}}", CONTAINER, check=False).strip()


def _started(deployed: Deployed) -> str:
    return deployed.host.exec("docker", "inspect", "--format", "{{.State.StartedAt}}", CONTAINER, check=False).strip()
