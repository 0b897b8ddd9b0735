"""Patches of a stack: which files of the engine they change, and what those files are afterwards."""

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import requests

from ops.errors import ConfigError
from ops.model.stack import LockedPatch, Stack
from ops.stacks.resolve import Candidate
from ops.stacks.wheels import open_wheel

TARGET = re.compile(r"^\+\+\+ (?:b/)?(\S+)", re.MULTILINE)
TIMEOUT_S = 60.0


def locked_patches(
    stack: Stack, folder: Path, engine: Candidate | None, session: requests.Session
) -> tuple[LockedPatch, ...]:
    """Apply the stack's patches, in order, to the engine's files, and return the digest of each file they leave.

    Raises: ConfigError when a patch does not apply exactly, or changes something other than the engine.
    """
    if not stack.patches:
        return ()
    if engine is None:
        raise ConfigError(f"stack {stack.name} has patches, but no engine among its packages")
    if shutil.which("patch") is None:
        raise ConfigError("the program `patch` is not installed, and the stack has patches")
    locked = []
    with tempfile.TemporaryDirectory(prefix="ops-patches-") as temporary, open_wheel(session, engine.url) as wheel:
        place, members = Path(temporary), set(wheel.namelist())
        for patch in stack.patches:
            path = (folder / patch.file).resolve()
            names = TARGET.findall(path.read_text(encoding="utf-8"))
            outside = [name for name in names if not name.startswith(f"{engine.name}/") or ".." in name]
            if outside or not names:
                raise ConfigError(
                    f"stack {stack.name}: {patch.file} changes {outside or 'nothing'}, not {engine.name}/"
                )
            for name in names:
                if name in members and not (place / name).exists():
                    wheel.extract(name, place)
            _apply(stack.name, patch.file, path, place)
            result = {name: hashlib.sha256((place / name).read_bytes()).hexdigest() for name in sorted(names)}
            locked.append(LockedPatch(file=patch.file, sha256=patch.sha256, result=result))
    return tuple(locked)


def _apply(name: str, shown: str, patch: Path, place: Path) -> None:
    words = ("patch", "-p1", "--batch", "--forward", "--fuzz=0", "--directory", place, "--input", patch)
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise ConfigError(f"stack {name}: {shown} does not apply to the locked engine:\n{done.stdout.strip()}")
