"""The Dockerfile of a stack and the folder it is built from: the same lock, the same bytes. Pure."""

import calendar
import io
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ops.errors import ConfigError
from ops.model.stack import Stack, StackLock
from ops.stacks.lock import requirements

PREFIX = "/opt/sglang"
CACHE = "/var/cache/engine"
USER = "ops-engine"
UID = 10001
"""The engine's user in every image: no user of a host has it, and files for it are given to it by number."""


def docker_folder() -> Path:
    """Where Dockerfile.j2 is: inside the installed package, or beside it in a checkout.

    Raises: FileNotFoundError when the installation is broken.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_docker", package.parent / "docker"):
        if (folder / "Dockerfile.j2").is_file():
            return folder
    raise FileNotFoundError(f"no Dockerfile.j2 in {package / '_docker'} nor {package.parent / 'docker'}")


def epoch(lock: StackLock) -> int:
    """The one time that a build may write down (epoch seconds): the lock's moment, else 1 January 2020."""
    text = lock.exclude_newer or "2020-01-01T00:00:00Z"
    return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))


def dockerfile(lock: StackLock, lock_sha256: str, stack: Stack) -> str:
    """Render the Dockerfile.

    Raises: ConfigError when the base image has no digest: nobody could say later what was built.
    """
    if lock.base is None:
        raise ConfigError(f"stack {lock.stack} names no base image", hint="write `base` into its file, then lock it")
    if lock.base.digest is None:
        raise ConfigError(
            f"stack {lock.stack}: the base image {lock.base.reference} has `digest: null`: it was not read from its "
            "registry yet, and a tag may be another image tomorrow",
            hint=f"run `ops stack lock {lock.stack}` where the registry answers",
        )
    environment = Environment(
        loader=FileSystemLoader(docker_folder()),
        undefined=StrictUndefined,
        autoescape=False,  # a Dockerfile, not HTML; every value is of a pattern that needs no quotes
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["basename"] = lambda path: PurePosixPath(path).name
    archs = sorted({arch for archs in lock.kernel_archs.values() for arch in archs}, key=lambda arch: int(arch[3:]))
    values: dict[str, Any] = {
        "lock": lock,
        "lock_sha256": lock_sha256,
        "base": f"{lock.base.repository}@{lock.base.digest}",
        "epoch": epoch(lock),
        "wheels": [wheel.file for wheel in stack.wheels],
        "archs": archs,
        "prefix": PREFIX,
        "cache": CACHE,
        "user": USER,
        "uid": UID,
    }
    return environment.get_template("Dockerfile.j2").render(values)


def context_files(lock: StackLock, lock_sha256: str, stack: Stack, folder: Path) -> dict[str, bytes]:
    """Every file of the build: name to content. Args: folder: where the lock, the stack's wheels and patches lie."""
    own = {PurePosixPath(w.file).name: f"/build/wheels/{PurePosixPath(w.file).name}" for w in stack.wheels}
    files = {
        "Dockerfile": dockerfile(lock, lock_sha256, stack).encode(),
        ".dockerignore": (docker_folder() / "dockerignore").read_bytes(),
        "requirements.txt": requirements(lock, own).encode(),
        "stack.lock": (folder / f"{lock.stack}.lock").read_bytes(),
    }
    for kind, entries in (("wheels", stack.wheels), ("patches", stack.patches)):
        for entry in entries:
            files[f"{kind}/{PurePosixPath(entry.file).name}"] = (folder / entry.file).read_bytes()
    return files


def context_archive(files: Mapping[str, bytes], mtime: int) -> bytes:
    """Pack the build's files as a tar whose bytes depend on nothing but them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), 0o644, mtime
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
