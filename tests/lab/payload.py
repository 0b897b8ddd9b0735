"""What is put into a lab host at its start: keys, the simulated engine as `sglang` in its venv, GPUs, weights.

None of it is in an image: a changed engine needs no new one. Invariant: the same payload for every kind of host.
"""

import io
import json
import re
import shutil
import sys
import tarfile
from dataclasses import asdict, dataclass
from pathlib import Path

from ops.sandbox.engine.install import Simulation, install_engine
from ops.sandbox.layout import DRAFT, TARGET
from ops.sandbox.models import model_files

from .images import ensure_image
from .machine import LAB_FOLDER, REPOSITORY, docker, locked, sh

ENGINE_PYTHON = "/opt/sglang/venv/bin/python"
HOST_PYTHON = "3.11"
SITE_PACKAGES = f"/opt/sglang/venv/lib/python{HOST_PYTHON}/site-packages"
SIMULATION = "/opt/sglang/venv/simulation"
"""Where the simulated engine looks: `simulation` under the prefix of the Python that runs it."""

GPUS = 8

ENGINE_NEEDS = ("anyio", "click", "h11", "idna", "setproctitle", "starlette", "typing-extensions", "uvicorn")
"""What the simulated engine imports and what that needs, by the names in requirements/run.txt."""


@dataclass(frozen=True)
class Keys:
    """The SSH keys of one host: its own, the client's, and the file by which clients know it."""

    host_key: Path
    client_key: Path
    known_hosts: Path

    def trust(self, address: str, port: int) -> None:
        """Write the known_hosts file for a host that will be reached at `address`:`port`."""
        name = address if port == 22 else f"[{address}]:{port}"
        public = self.host_key.with_suffix(".pub").read_text().split()
        self.known_hosts.write_text(f"{name} {public[0]} {public[1]}\n")


def make_keys(name: str) -> Keys:
    """Return the keys of the host `name`, made on first use. The client's key is one for the whole lab."""
    folder = LAB_FOLDER / "hosts" / name
    folder.mkdir(parents=True, exist_ok=True)
    client = LAB_FOLDER / "client_key"
    with locked("keys"):
        for path in (client, folder / "host_key"):
            if not path.exists():
                sh(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ops-lab", "-f", path))
    return Keys(folder / "host_key", client, folder / "known_hosts")


def host_payload(keys: Keys, simulation: Simulation) -> bytes:
    """Return a tar, to be unpacked at `/` of a new host. Owner of everything is root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        _add_keys(archive, keys)
        # Read under the lock: another process may be putting a changed engine there.
        with locked("engine"):
            archive.add(_engine_packages(), arcname=SITE_PACKAGES.lstrip("/"), filter=_as_root)
        _add_simulation(archive, simulation)
        _add_gpus(archive)
        _add_weights(archive)
    return buffer.getvalue()


def key_archive(keys: Keys) -> bytes:
    """Return a tar with nothing but the keys: enough to log in."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        _add_keys(archive, keys)
    return buffer.getvalue()


def _add_keys(archive: tarfile.TarFile, keys: Keys) -> None:
    add_file(archive, "etc/ssh/lab/host_key", keys.host_key.read_bytes(), mode=0o600)
    add_file(archive, "etc/ssh/lab/authorized_keys", keys.client_key.with_suffix(".pub").read_bytes())


def add_file(archive: tarfile.TarFile, arcname: str, content: bytes, *, mode: int = 0o644) -> None:
    """Add one file owned by root to an archive."""
    entry = tarfile.TarInfo(arcname)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode |= 0o755 if entry.isdir() else 0o644
    return entry


def _engine_packages() -> Path:
    """Return a site-packages folder with the simulated engine and its needs, byte-compiled for the host's Python."""
    folder = LAB_FOLDER / "site-packages"
    wanted = _requirements()
    stamp = LAB_FOLDER / "site-packages.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        stamp.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        _pip_install(wanted, folder)
        stamp.write_text(wanted)
    install_engine(folder)
    _byte_compile(folder)
    return folder


def _requirements() -> str:
    """Return the part of requirements/run.txt that the engine needs, with its hashes."""
    blocks = re.split(r"\n(?=[a-z0-9])", (REPOSITORY / "requirements" / "run.txt").read_text())
    by_name = {block.split("==")[0].split("[")[0]: block for block in blocks}
    return "\n".join(by_name[name] for name in ENGINE_NEEDS) + "\n"


def _pip_install(requirements: str, folder: Path) -> None:
    LAB_FOLDER.mkdir(exist_ok=True)
    listing = LAB_FOLDER / "requirements.txt"
    listing.write_text(requirements)
    platform = ("--python-version", HOST_PYTHON, "--implementation", "cp", "--only-binary", ":all:")
    quiet = ("--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps", "--require-hashes")
    sh(
        (sys.executable, "-m", "pip", "install", *quiet, *platform, "--target", folder, "-r", listing),
        timeout_s=180,
    )


def _byte_compile(folder: Path) -> None:
    """Compile with the host's own Python: an engine user that may not write there would compile at every start."""
    stamp = LAB_FOLDER / "site-packages.compiled"
    newest = f"{max(path.stat().st_mtime_ns for path in folder.rglob('*.py'))}"
    if stamp.exists() and stamp.read_text() == newest:
        return
    compiling = ("python3", "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "/packages")
    docker("run", "--rm", "--network", "none", "-v", f"{folder}:/packages", ensure_image("base"), *compiling)
    stamp.write_text(newest)


def _add_simulation(archive: tarfile.TarFile, simulation: Simulation) -> None:
    # Engines of any user write here: who holds GPU memory, how many runs there were.
    for folder in ("", "/faults", "/gpu", *(f"/gpu/{index}" for index in range(GPUS))):
        entry = tarfile.TarInfo(f"{SIMULATION}{folder}".lstrip("/"))
        entry.type, entry.mode = tarfile.DIRTYPE, 0o777
        archive.addfile(entry)
    add_file(archive, f"{SIMULATION}/run-counter".lstrip("/"), b"1\n", mode=0o666)
    settings = json.dumps(asdict(simulation), indent=1)
    add_file(archive, f"{SIMULATION}/config.json".lstrip("/"), settings.encode())


def _add_gpus(archive: tarfile.TarFile) -> None:
    engine = REPOSITORY / "ops/sandbox/engine"
    for module in ("gpu.py", "nvidia_smi.py"):
        add_file(archive, f"opt/sglang/gpus/{module}", (engine / module).read_bytes())
    script = f'#!/bin/sh\nexec {ENGINE_PYTHON} -I -S /opt/sglang/gpus/nvidia_smi.py {SIMULATION} "$@"\n'
    add_file(archive, "usr/local/bin/nvidia-smi", script.encode(), mode=0o755)


def _add_weights(archive: tarfile.TarFile) -> None:
    """Lay down the story's target and draft, the very files that the sandbox has."""
    files = model_files()
    for folder, model in ((f"shared/{TARGET}", "target"), (f"data/{DRAFT}", "draft")):
        for name, content in files[model].items():
            add_file(archive, f"{folder}/{name}", content)
