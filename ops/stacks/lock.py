"""Make, write and read locks. Invariant: the same wanted stack gives the same bytes, with nothing of this machine."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests
from pydantic import ValidationError

from ops.errors import ConfigError
from ops.model.stack import (
    ENGINE_PACKAGES,
    KERNEL_PACKAGES,
    BuiltImage,
    Image,
    LockedPackage,
    Stack,
    StackLock,
)
from ops.stacks.patches import locked_patches
from ops.stacks.resolve import Candidate, resolve
from ops.stacks.wheels import archs_of, open_wheel, record_of

READERS = 8
NOT_WANTED = ("description", "image", "lock_sha256")
"""Keys of a stack that change nothing about what is installed."""

Say = Callable[[str], None]
ReadDigest = Callable[[Image], str | None]


def stack_folder(project: Path) -> Path:
    """Where stacks, their locks and the files beside them are."""
    return project / "envs" / "stacks"


def lock_path(project: Path, name: str) -> Path:
    """The lock's file."""
    return stack_folder(project) / f"{name}.lock"


def image_path(project: Path, name: str) -> Path:
    """The file that says which image was built of the lock."""
    return stack_folder(project) / f"{name}.image.json"


def wanted_digest(stack: Stack) -> str:
    """Digest of what the stack's file asks for."""
    wanted = {key: value for key, value in stack.model_dump(mode="json").items() if key not in NOT_WANTED}
    return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()


def make_lock(
    stack: Stack,
    folder: Path,
    *,
    known: StackLock | None = None,
    read_digest: ReadDigest = lambda image: None,
    say: Say = lambda text: None,
) -> StackLock:
    """Resolve a stack.

    Args:
        known: an earlier lock; what it says of a wheel of the same digest is not read from the wheel again.
        read_digest: asks a registry for the base image's digest where the stack's file has none.
    Raises: ConfigError when it does not resolve or does not hold what it must.
    """
    _check_files(stack, folder)
    say(f"{stack.name}: resolving for Python {stack.python} on {stack.platform}")
    candidates = resolve(stack, folder)
    session = requests.Session()
    earlier = {package.sha256: package for package in known.packages} if known else {}
    say(f"{stack.name}: {len(candidates)} packages; reading what their wheels hold")
    with ThreadPoolExecutor(max_workers=READERS) as pool:
        packages = tuple(pool.map(lambda found: _locked(session, found, earlier), candidates))
    by_name = {candidate.name: candidate for candidate in candidates}
    lock = StackLock(
        stack=stack.name,
        wanted_sha256=wanted_digest(stack),
        engine=stack.engine,
        engine_version=stack.engine_version,
        engine_commit=stack.engine_commit,
        python=str(stack.python),
        platform=stack.platform,
        exclude_newer=stack.exclude_newer,
        cuda=_major_minor(packages, "nvidia-cuda-runtime"),
        nccl=_version_of(packages, "nvidia-nccl"),
        kernel_archs=_kernel_archs(session, by_name, known, say),
        base=_base(stack, read_digest, say),
        system=stack.system,
        patches=locked_patches(stack, folder, by_name.get(ENGINE_PACKAGES[stack.engine]), session),
        packages=packages,
    )
    _check(stack, lock)
    return lock


def _check_files(stack: Stack, folder: Path) -> None:
    for kind, entries in (("wheel", stack.wheels), ("patch", stack.patches)):
        for entry in entries:
            path = folder / entry.file
            if not path.is_file():
                raise ConfigError(f"stack {stack.name}: {kind} {entry.file} is not in envs/stacks/")
            seen = hashlib.sha256(path.read_bytes()).hexdigest()
            if seen != entry.sha256:
                raise ConfigError(
                    f"stack {stack.name}: {kind} {entry.file} is not the pinned one: {seen}, pinned {entry.sha256}"
                )


def _locked(session: requests.Session, found: Candidate, earlier: dict[str, LockedPackage]) -> LockedPackage:
    known = earlier.get(found.sha256)
    if known is not None and known.record is not None:
        record: str | None = known.record
    else:
        with open_wheel(session, found.url) as wheel:
            record = record_of(wheel)
    return LockedPackage(
        name=found.name, version=found.version, file=found.file, sha256=found.sha256, size=found.size, record=record
    )


def _version_of(packages: Sequence[LockedPackage], prefix: str) -> str | None:
    return next((p.version for p in packages if p.name == prefix or p.name.startswith(f"{prefix}-cu")), None)


def _major_minor(packages: Sequence[LockedPackage], prefix: str) -> str | None:
    version = _version_of(packages, prefix)
    return ".".join(version.split(".")[:2]) if version else None


def _kernel_archs(
    session: requests.Session, by_name: dict[str, Candidate], known: StackLock | None, say: Say
) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name in KERNEL_PACKAGES:
        candidate = by_name.get(name)
        if candidate is None:
            continue
        before = known.package(name) if known else None
        if (
            known is not None
            and before is not None
            and before.sha256 == candidate.sha256
            and name in known.kernel_archs
        ):
            found[name] = known.kernel_archs[name]
            continue
        say(f"reading the GPU code of {candidate.file} ({(candidate.size or 0) / 1e6:.0f} MB), once for this version")
        with open_wheel(session, candidate.url) as wheel:
            found[name] = archs_of(wheel)
    return found


def _base(stack: Stack, read_digest: ReadDigest, say: Say) -> Image | None:
    base = stack.base
    if base is None or base.digest is not None:
        return base
    digest = read_digest(base)
    if digest is None:
        say(
            f"the digest of the base image {base.reference} is not known here: images of this stack cannot be built yet"
        )
    return base.model_copy(update={"digest": digest})


def _check(stack: Stack, lock: StackLock) -> None:
    problems = []
    engine = lock.package(ENGINE_PACKAGES[stack.engine])
    if engine is not None and engine.version.partition("+")[0] != stack.engine_version:
        problems.append(f"it resolves to {engine.name} {engine.version}, engine_version says {stack.engine_version}")
    if stack.cuda is not None and lock.cuda != stack.cuda:
        problems.append(f"its wheels are for CUDA {lock.cuda}, cuda says {stack.cuda}")
    for name, archs in lock.kernel_archs.items():
        missing = [arch for arch in stack.gpu_archs if not covers(archs, arch)]
        if missing:
            problems.append(f"{name} holds GPU code for {', '.join(archs)}, none for {', '.join(missing)}")
    if problems:
        raise ConfigError(f"stack {stack.name}: {'; '.join(problems)}", hint="change the stack's file")


def covers(archs: Sequence[str], wanted: str) -> bool:
    """Tell whether machine code for `archs` runs on a GPU of `wanted` (sm_90 …): the same major, a minor not newer.

    Source: CUDA C++ Programming Guide, "Binary Compatibility". Code for PTX is not counted: it is compiled at start.
    """
    number = int(wanted[3:].rstrip("abcdefghijklmnopqrstuvwxyz"))
    return any(int(a[3:]) // 10 == number // 10 and int(a[3:]) % 10 <= number % 10 for a in archs)


def lock_bytes(lock: StackLock) -> bytes:
    """Write a lock: JSON, one package a line, so that a change reads as one line."""
    document = lock.model_dump(mode="json")
    packages = document.pop("packages")
    head = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True)
    lines = ",\n".join("  " + json.dumps(package, ensure_ascii=False) for package in packages)
    return (head.removesuffix("\n}") + ',\n "packages": [\n' + lines + "\n ]\n}\n").encode()


def read_lock(project: Path, name: str) -> tuple[StackLock, str] | None:
    """Return a stack's lock and the digest of its file, or None when there is none.

    Raises: ConfigError when the file is no lock.
    """
    path = lock_path(project, name)
    if not path.is_file():
        return None
    content = path.read_bytes()
    try:
        lock = StackLock.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"envs/stacks/{name}.lock is not a lock: {where}: {first['msg']}", hint=f"ops stack lock {name}"
        ) from error
    return lock, hashlib.sha256(content).hexdigest()


def need_lock(project: Path, name: str) -> tuple[StackLock, str]:
    """As `read_lock`. Raises: ConfigError also when there is none."""
    found = read_lock(project, name)
    if found is None:
        raise ConfigError(f"stack {name} has no lock", hint=f"ops stack lock {name}")
    return found


def requirements(lock: StackLock, own: Mapping[str, str]) -> str:
    """The lock as pip reads it: every package with the digest of its one wheel.

    Args: own: the stack's own wheels, file name to where it lies when pip runs; an index may have the same version.
    """
    lines = []
    for package in lock.packages:
        place = own.get(package.file)
        what = f"{package.name} @ file://{place}" if place else f"{package.name}=={package.version}"
        lines.append(f"{what} --hash=sha256:{package.sha256}\n")
    return "".join(lines)


def read_image(project: Path, name: str) -> BuiltImage | None:
    """What was built of a stack's lock, or None. Raises: ConfigError when the file is no such thing."""
    path = image_path(project, name)
    if not path.is_file():
        return None
    try:
        return BuiltImage.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ConfigError(f"envs/stacks/{path.name} is not what `ops image build` writes: {error}") from error
