"""What differs between two locks, and whether a lock is still what its stack asks for. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ops.model.stack import Stack, StackLock
from ops.stacks.lock import wanted_digest

HEAD = ("engine_version", "engine_commit", "python", "platform", "exclude_newer", "cuda", "nccl")


@dataclass(frozen=True)
class Difference:
    """One thing in which two locks differ; None: not there."""

    key: str
    a: Any
    b: Any

    def line(self) -> str:
        """The difference as one line of text."""
        return f"{self.key}: {'-' if self.a is None else self.a} -> {'-' if self.b is None else self.b}"


def differences(a: StackLock, b: StackLock) -> list[Difference]:
    """Return all that differs, the engine and its surroundings first, then packages by name."""
    return [*_head(a, b), *_packages(a, b)]


def _head(a: StackLock, b: StackLock) -> Iterator[Difference]:
    for key in HEAD:
        left, right = getattr(a, key), getattr(b, key)
        if left != right:
            yield Difference(key, left, right)
    for name in sorted({*a.kernel_archs, *b.kernel_archs}):
        left, right = (" ".join(lock.kernel_archs.get(name, ())) or None for lock in (a, b))
        if left != right:
            yield Difference(f"kernels of {name}", left, right)
    left, right = (lock.base.reference if lock.base else None for lock in (a, b))
    if left != right:
        yield Difference("base", left, right)
    if a.system != b.system:
        yield Difference("system", a.system.model_dump(mode="json"), b.system.model_dump(mode="json"))
    left, right = (", ".join(f"{p.file} {p.sha256[:12]}" for p in lock.patches) or None for lock in (a, b))
    if left != right:
        yield Difference("patches", left, right)


def _packages(a: StackLock, b: StackLock) -> Iterator[Difference]:
    left, right = ({p.name: p for p in lock.packages} for lock in (a, b))
    for name in sorted({*left, *right}):
        one, other = left.get(name), right.get(name)
        if one == other:
            continue
        if one and other and one.version == other.version:
            yield Difference(
                name, f"{one.version} ({one.file}, {one.sha256[:12]})", f"{other.file}, {other.sha256[:12]}"
            )
        else:
            yield Difference(name, one.version if one else None, other.version if other else None)


def stale(stack: Stack, lock: StackLock) -> str:
    """Say why a lock is not the stack's any more; empty when it is."""
    if lock.stack != stack.name:
        return f"it was made for stack {lock.stack}"
    if lock.wanted_sha256 != wanted_digest(stack):
        return "the stack's file was changed after it was locked"
    return ""
