"""Is a lock what its stack asks for, and does the stack still resolve to it?"""

from dataclasses import dataclass
from pathlib import Path

from ops.errors import ConfigError
from ops.model.stack import Image, Stack, StackLock
from ops.stacks.compare import differences, stale
from ops.stacks.lock import ReadDigest, Say, lock_bytes, lock_path, make_lock, read_image, read_lock, stack_folder

UNSATISFIABLE = ("No solution found", "has no wheel", "not the pinned one", "does not apply", "is not in envs/stacks/")


@dataclass(frozen=True)
class Checked:
    """What was found wrong with one stack, and what could not be found out."""

    name: str
    problems: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    summary: str = ""


def check(project: Path, stack: Stack, *, read_digest: ReadDigest | None, say: Say) -> Checked:
    """Judge one stack. Args: read_digest: None leaves out everything that needs a package index or a registry."""
    found = read_lock(project, stack.name)
    if found is None and not stack.requirements:
        return Checked(stack.name, summary="nothing to lock: its environment is made elsewhere")
    if found is None:
        return Checked(stack.name, ("it has no lock",))
    lock, digest = found
    problems = [text for text in (stale(stack, lock), _image_problem(project, stack.name, digest)) if text]
    unknown: list[str] = []
    notes: list[str] = []
    if read_digest is not None and not problems:
        _resolve_again(project, stack, lock, say, problems, unknown)
        _tag(lock, read_digest, problems, notes)
    archs = "; ".join(f"{name} for {' '.join(archs)}" for name, archs in lock.kernel_archs.items())
    summary = f"locked: {len(lock.packages)} packages, {stack.engine} {lock.engine_version}, NCCL {lock.nccl or 'none'}"
    summary = "; ".join(filter(None, (summary, archs, *notes)))
    return Checked(stack.name, tuple(problems), tuple(unknown), summary)


def _image_problem(project: Path, name: str, digest: str) -> str:
    image = read_image(project, name)
    if image is not None and image.lock_sha256 != digest:
        return f"image {image.id[7:19]} was built of another lock: ops image build {name}"
    return ""


def _resolve_again(
    project: Path, stack: Stack, lock: StackLock, say: Say, problems: list[str], unknown: list[str]
) -> None:
    # What a registry said once stays; whether it still says so is another question (see _tag).
    def as_locked(image: Image) -> str | None:
        return lock.base.digest if lock.base else None

    try:
        made = make_lock(stack, stack_folder(project), known=lock, read_digest=as_locked, say=say)
    except ConfigError as error:
        wanting = any(text in error.message for text in UNSATISFIABLE)
        (problems if wanting else unknown).append(f"it does not resolve: {error.message}")
        return
    problems.extend(f"it resolves to something else: {difference.line()}" for difference in differences(lock, made))
    if not problems and lock_bytes(made) != lock_path(project, stack.name).read_bytes():
        problems.append("the lock's file was edited by hand: `ops stack lock` would write other bytes")


def _tag(lock: StackLock, read_digest: ReadDigest, problems: list[str], notes: list[str]) -> None:
    base = lock.base
    if base is None or base.tag is None:
        return
    seen = read_digest(base.model_copy(update={"digest": None}))
    tag = f"{base.repository}:{base.tag}"
    if seen is None:
        if base.digest is None:
            notes.append(
                f"its image cannot be built yet: the digest of {tag} is not known, and no registry answers here"
            )
    elif base.digest is None:
        problems.append(f"the registry answers now: {tag} is {seen}, and the lock has no digest")
    elif seen != base.digest:
        problems.append(f"the tag {tag} was moved: it is {seen} now, {base.digest} is locked")
