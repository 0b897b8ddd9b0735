"""Ask uv which versions satisfy a stack, for its platform and Python and not for those of the machine it runs on.

The answer's addresses are used while a lock is made and never written down.
"""

import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from ops.errors import ConfigError
from ops.model.stack import Stack

RESOLVE_TIMEOUT_S = 900.0
OLDEST_GLIBC = 5
"""Older tags name no wheel of a Python that is supported. Source: PEP 513 (manylinux1 is glibc 2.5)."""
ALIASES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""Source: PEP 600, "Legacy manylinux tags"."""


@dataclass(frozen=True)
class Candidate:
    """One wheel that the resolver offers: `url` says where it is (an address, or a local file), for this run only."""

    name: str
    version: str
    file: str
    sha256: str
    size: int | None
    url: str


def resolve(stack: Stack, folder: Path) -> list[Candidate]:
    """Return the best wheel of every package that `stack` needs, sorted by name.

    Args: folder: where the stack's own wheels lie.
    Raises: ConfigError when it does not resolve, or a package has no wheel for the platform.
    """
    if stack.python is None:
        raise ConfigError(f"stack {stack.name}: `python` is not set", hint="write python: '3.12' into its file")
    with tempfile.TemporaryDirectory(prefix="ops-stack-") as temporary:
        place = Path(temporary)
        document = _uv(stack, folder, place)
    found, problems = [], []
    ranks = {tag: rank for rank, tag in enumerate(target_tags(stack.python, stack.platform))}
    for package in document.get("packages", []):
        best = _best(package, ranks)
        if best is None:
            problems.append(
                f"{package['name']} {package.get('version', '')} has no wheel for {stack.python} on {stack.platform}"
            )
        else:
            found.append(best)
    if problems:
        raise ConfigError(
            f"stack {stack.name}: " + "; ".join(problems),
            hint="build a wheel of it and list it under `wheels`, or constrain the package to a version that has one",
        )
    return sorted(found, key=lambda candidate: candidate.name)


def target_tags(python: str, platform: str) -> list[Tag]:
    """Return the wheel tags that a Python on a platform takes, best first."""
    major, minor = (int(part) for part in python.split("."))
    machine, _, glibc = platform.partition("-manylinux_2_")
    platforms = []
    for number in range(int(glibc), OLDEST_GLIBC - 1, -1):
        platforms.append(f"manylinux_2_{number}_{machine}")
        if number in ALIASES:
            platforms.append(f"{ALIASES[number]}_{machine}")
    platforms.append(f"linux_{machine}")
    tags = [*cpython_tags((major, minor), platforms=platforms)]
    return [*tags, *compatible_tags((major, minor), interpreter=f"cp{major}{minor}", platforms=platforms)]


def uv_version() -> str:
    """Return the version of the resolver. Raises: ConfigError when it is not there."""
    done = subprocess.run([_uv_program(), "--version"], capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip()


def _best(package: Mapping[str, Any], ranks: Mapping[Tag, int]) -> Candidate | None:
    best: tuple[int, str] | None = None
    chosen: Candidate | None = None
    own = package.get("archive")
    for wheel in [own] if own else package.get("wheels", []):
        file = wheel.get("name") or unquote(Path(urlparse(wheel.get("url") or wheel.get("path")).path).name)
        _, _, build, tags = parse_wheel_filename(file)
        order = min((ranks[tag] for tag in tags if tag in ranks), default=None)
        # Of equal tags the higher build number; then the name, so that the choice is always the same.
        if order is None or (best is not None and (order, f"{build}{file}") >= best):
            continue
        best = (order, f"{build}{file}")
        chosen = Candidate(
            name=str(canonicalize_name(package["name"])),
            version=package["version"],
            file=file,
            sha256=wheel["hashes"]["sha256"],
            size=wheel.get("size"),
            url=wheel.get("url") or wheel["path"],
        )
    return chosen


def _named(file: str) -> str:
    return str(parse_wheel_filename(Path(file).name)[0])


def _uv(stack: Stack, folder: Path, place: Path) -> dict[str, Any]:
    (place / "wanted.in").write_text("".join(f"{line}\n" for line in stack.requirements))
    constraints = "".join(f"{name}=={version}\n" for name, version in sorted(stack.constraints.items()))
    (place / "constraints.in").write_text(constraints)
    words: list[str | Path] = [_uv_program(), "pip", "compile", place / "wanted.in", "--quiet", "--no-header"]
    words += ["--format", "pylock.toml", "--output-file", place / "pylock.toml", "--only-binary", ":all:"]
    words += ["--constraints", place / "constraints.in", "--python-version", str(stack.python)]
    # Any interpreter will do, wheels only are looked at; uv would search the machine for one of the target's version.
    words += ["--python-platform", stack.platform, "--python", sys.executable]
    if stack.exclude_newer:
        words += ["--exclude-newer", stack.exclude_newer]
    if stack.wheels:
        # By reference, so that an index that has the same version cannot take the place of the stack's own build.
        own = [f"{_named(wheel.file)} @ {(folder / wheel.file).resolve().as_uri()}\n" for wheel in stack.wheels]
        (place / "own.in").write_text("".join(own))
        words += ["--overrides", place / "own.in"]
    _run(words, stack.name, place)
    return tomllib.loads((place / "pylock.toml").read_text(encoding="utf-8"))


def _run(words: Sequence[str | Path], name: str, place: Path) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False, cwd=place)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"stack {name}: uv did not answer within {RESOLVE_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        raise ConfigError(
            f"stack {name} does not resolve:\n{done.stderr.strip()}",
            hint="change requirements, constraints, python, platform or exclude_newer in its file; "
            "when the package index did not answer, try again",
        )


def _uv_program() -> str:
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise ConfigError("uv is not installed, and it resolves stacks", hint="pip install 'ops[stack]'")
    return found
