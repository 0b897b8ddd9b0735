"""What tests of images need: a registry with digests, a stack on the lab's own base, a project around it.

The engine is the simulated one, packed as a wheel like any other, so that locks, builds and proofs treat it as they
treat the real one.
"""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ops.sandbox.engine.install import install_engine

from .hosts import NETWORK, Host, Lab
from .images import ensure_image
from .machine import CHECKOUT, PREFIX, REPOSITORY, docker

ENGINE_VERSION = "0.5.23"
ENGINE_NEEDS = ("setproctitle>=1.3", "starlette>=0.45", "uvicorn>=0.34")
STACK = "lab"
CUTOFF = "2026-11-28T00:00:00Z"
REGISTRY_PORT = 5000


@dataclass(frozen=True)
class Registry:
    """A registry container: `local` is its name for this machine, `address` where lab hosts reach it."""

    container: str
    local: str
    address: str


@contextmanager
def registry(lab: Lab, name: str) -> Iterator[Registry]:
    """A fresh registry, gone afterwards. Reached as 127.0.0.1:PORT, which Docker trusts without TLS."""
    lab._ensure_network()
    container = f"{PREFIX}-{CHECKOUT}-{name}"
    labels = (f"--label={PREFIX}", f"--label={PREFIX}.checkout={CHECKOUT}", f"--label={PREFIX}.name={name}")
    docker("rm", "--force", "--volumes", container, check=False)
    publish = f"127.0.0.1::{REGISTRY_PORT}"
    image = ensure_image("registry")
    docker("run", "--detach", "--name", container, *labels, "--network", NETWORK, "--publish", publish, image)
    try:
        port = docker("port", container, str(REGISTRY_PORT)).strip().rpartition(":")[2]
        template = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        address = docker("inspect", "--format", template, container).strip()
        yield Registry(container, f"127.0.0.1:{port}", address)
    finally:
        docker("rm", "--force", "--volumes", container)


def reachable(host: Host, found: Registry) -> None:
    """Let a lab host reach the registry under the same name as this machine: forward the port on its loopback."""
    port = found.local.rpartition(":")[2]
    forward = f"/lib/systemd/systemd-socket-proxyd {found.address}:{REGISTRY_PORT}"
    socket = f"[Socket]\nListenStream=127.0.0.1:{port}\n[Install]\nWantedBy=sockets.target\n"
    service = f"[Service]\nExecStart={forward}\n"
    for name, text in (("registry.socket", socket), ("registry.service", service)):
        host.exec("sh", "-c", f"cat >/etc/systemd/system/{name}", stdin=text.encode())
    host.exec("systemctl", "enable", "--now", "registry.socket")


def pushed_digest(found: Registry, image: str, name: str) -> str:
    """Push an image of this machine to the registry as `name` and return its digest there."""
    reference = f"{found.local}/{name}"
    docker("tag", image, reference)
    try:
        docker("push", reference, timeout_s=180)
        digests = json.loads(docker("inspect", "--format", "{{json .RepoDigests}}", reference))
    finally:
        docker("rmi", reference, check=False)
    repository = reference.rpartition(":")[0]
    return next(str(d).partition("@")[2] for d in digests if str(d).startswith(f"{repository}@"))


def engine_wheel(folder: Path, *, marker: str = "") -> Path:
    """Pack the simulated engine as a wheel: the same files, the same bytes. `marker`: makes another build."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / "unpacked"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    install_engine(place)
    if marker:
        (place / "sglang" / "build_marker.txt").write_text(marker)
    info = f"sglang-{ENGINE_VERSION}.dist-info"
    needs = "".join(f"Requires-Dist: {need}\n" for need in ENGINE_NEEDS)
    files = {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: sglang\nVersion: {ENGINE_VERSION}\n{needs}".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in sorted(files.items())]
    files[f"{info}/RECORD"] = ("".join(rows) + f"{info}/RECORD,,\n").encode()
    wheel = folder / f"sglang-{ENGINE_VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content)
    shutil.rmtree(place)
    return wheel


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def lab_project(folder: Path, *, base: dict[str, str | None] | None, repository: str) -> Path:
    """Make a project folder: the shipped profiles and NCCL sets, and the stack `lab`."""
    shutil.copytree(REPOSITORY / "envs" / "profiles", folder / "envs" / "profiles", dirs_exist_ok=True)
    shutil.copytree(REPOSITORY / "envs" / "nccl", folder / "envs" / "nccl", dirs_exist_ok=True)
    stacks = folder / "envs" / "stacks"
    stacks.mkdir(parents=True, exist_ok=True)
    write_stack(stacks, STACK, base=base, repository=repository)
    return folder


def write_stack(
    stacks: Path, name: str, *, base: dict[str, str | None] | None, repository: str, marker: str = ""
) -> None:
    """Write a stack's file and the wheel beside it. `marker`: another build of the same engine version."""
    wheel = engine_wheel(stacks / f"{name}.wheels", marker=marker)
    document: dict[str, object] = {
        "engine": "sglang",
        "engine_version": ENGINE_VERSION,
        "python": "3.11",
        "platform": "x86_64-manylinux_2_36",
        "exclude_newer": CUTOFF,
        "image": {"repository": repository},
        "requirements": [f"sglang=={ENGINE_VERSION}"],
        "wheels": [{"file": f"{name}.wheels/{wheel.name}", "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()}],
    }
    if base is not None:
        document["base"] = base
    (stacks / f"{name}.yaml").write_text(yaml.safe_dump(document, sort_keys=False))


@dataclass(frozen=True)
class Outcome:
    """What one `ops` command did."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Everything it printed."""
        return self.out + self.err

    @property
    def document(self) -> dict[str, Any]:
        """Its `--json` document."""
        found: dict[str, Any] = json.loads(self.out)
        return found


def run_ops(project: Path, *words: str, timeout_s: float = 600) -> Outcome:
    """Run `ops` in a project folder, as an operator does."""
    command = (str(REPOSITORY / ".venv" / "bin" / "ops"), *words)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OPS_")}
    done = subprocess.run(
        command, cwd=project, capture_output=True, text=True, timeout=timeout_s, check=False, env=environment
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def done(outcome: Outcome) -> Outcome:
    """The outcome of a command that must have succeeded."""
    assert outcome.code == 0, outcome.text
    return outcome


def use_stack(project: Path, profile: str, **changes: object) -> None:
    """Move a profile to another stack or runtime. Speed is not what these tests are about, and takes a minute."""
    path = project / "envs" / "profiles" / f"{profile}.yaml"
    document = yaml.safe_load(path.read_text())
    skipped = dict.fromkeys(("agreement", "speed"), "measured by other tests")
    document["gates"] = {**document.get("gates", {}), "skip": skipped}
    path.write_text(yaml.safe_dump({**document, **changes}, sort_keys=False))


def inventory(project: Path, hosts: dict[str, Host], **variables: object) -> None:
    """Write the project's inventory."""
    entries = {name: {**host.inventory_entry(), **variables} for name, host in hosts.items()}
    (project / "envs" / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": entries}}))
