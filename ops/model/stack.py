"""`Stack`: the pinned software under a profile, and `StackLock`: every file that it resolves to.

Invariant: a lock says nothing about where things are fetched from, only what they are: names, versions, digests.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ops.model.base import Data, Problem, RulesBroken
from ops.model.profile import Name
from ops.model.profile_parts import Line, Sha256

Version = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)*([a-z0-9.+-]*)$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Arch = Annotated[str, Field(pattern=r"^sm_[0-9]+[a-z]?$")]
Package = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
RelativeFile = Annotated[str, Field(pattern=r"^[^/\n][^\n]*$")]

ENGINE_PACKAGES = {"sglang": "sglang"}
"""Package that holds the engine, by the engine's name."""
KERNEL_PACKAGES = ("sglang-kernel", "sgl-kernel")
"""Packages with GPU code of the engine itself. Source: the requirements of sglang 0.5.23 and 0.5.9."""


class Image(Data):
    """A container image. What nobody has read from a registry or a Docker daemon stays null and is refused later."""

    repository: Line = Field(description="Repository, without tag.")
    tag: str | None = Field(None, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$", description="Tag to read from once.")
    digest: Digest | None = Field(None, description="sha256:… of the manifest; null: not known, builds refuse.")
    id: Digest | None = Field(None, description="sha256:… of the image itself, the same on every host.")

    @property
    def reference(self) -> str:
        """How a Docker daemon is asked for it: by digest, else by tag."""
        if self.digest:
            return f"{self.repository}@{self.digest}"
        return f"{self.repository}:{self.tag}" if self.tag else self.repository


class Patch(Data):
    """A patch applied to the engine when the stack is built (`patch -p1` in site-packages)."""

    file: RelativeFile = Field(description="File, relative to the stack's.")
    sha256: Sha256 = Field(description="Its digest.")


class Wheel(Data):
    """A wheel that lies beside the stack: an engine built from a commit, a package no index has."""

    file: RelativeFile = Field(description="File, relative to the stack's.")
    sha256: Sha256 = Field(description="Its digest.")


class SystemPackages(Data):
    """Packages of the base image's own distribution, where the base lacks what the stack needs."""

    packages: tuple[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]*(=[A-Za-z0-9.+:~-]+)?$")], ...] = Field(
        (), description="Debian packages: name, or name=version."
    )
    snapshot: str | None = Field(
        None,
        pattern=r"^[0-9]{8}T[0-9]{6}Z$",
        description="Moment of the distribution's snapshot archive; pins names that carry no version.",
    )

    @model_validator(mode="after")
    def _pinned(self) -> Self:
        free = [name for name in self.packages if "=" not in name]
        if free and self.snapshot is None:
            raise RulesBroken(
                [Problem(("snapshot",), f"{', '.join(free)}: neither a version nor a snapshot pins them; write one")]
            )
        return self


class Stack(Data):
    """What the engine runs on. `engine_version` chooses the flag table, the log rules and the metric names."""

    name: Name = Field(description="Name of the stack: the file's name without `.yaml`.")
    description: str = Field("", description="One sentence.")
    engine: Literal["sglang"] = Field("sglang", description="The engine.")
    engine_version: Version = Field(description="Exact version of the engine.")
    engine_commit: str | None = Field(None, pattern=r"^[0-9a-f]{40}$", description="Commit, where built from source.")
    python: str | None = Field(None, pattern=r"^3\.[0-9]+$", description="Python of the environment, major.minor.")
    platform: str = Field(
        "x86_64-manylinux_2_35",
        pattern=r"^(x86_64|aarch64)-manylinux_2_[0-9]+$",
        description="Platform the lock is resolved for: machine and oldest glibc, as uv names it.",
    )
    exclude_newer: str | None = Field(
        None,
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$",
        description="Nothing published after this moment is looked at: the same lock on any day.",
    )
    cuda: Version | None = Field(None, description="CUDA of the wheels, major.minor.")
    gpu_archs: tuple[Arch, ...] = Field((), description="GPU architectures that the kernels must hold code for.")
    base: Image | None = Field(None, description="Base image of the build.")
    system: SystemPackages = Field(
        default_factory=lambda: SystemPackages.model_validate({}), description="Distribution packages on top of it."
    )
    image: Image | None = Field(None, description="Built image that runtime docker starts.")
    requirements: tuple[Line, ...] = Field((), description="Requirements that the lock resolves.")
    constraints: dict[str, str] = Field(default_factory=dict, description="Package: exact version.")
    wheels: tuple[Wheel, ...] = Field((), description="Wheels beside the stack's file that the resolver may choose.")
    patches: tuple[Patch, ...] = Field((), description="Patches, in order.")
    lock_sha256: Sha256 | None = Field(None, description="Digest of NAME.lock, read from there; never written here.")

    @property
    def folder(self) -> str:
        """Name of the environment that a lock becomes on a host. Raises: ValueError without a lock."""
        if self.lock_sha256 is None:
            raise ValueError(f"stack {self.name} has no lock")
        return f"{self.name}-{self.lock_sha256[:12]}"


class LockedPackage(Data):
    """One file to install.

    `record` is the digest of what the wheel says of its own files (`ops.remote.stack_probe.record_digest`), so that an
    installation can be compared with the lock long after the wheel is gone.
    """

    name: Package
    version: str
    file: Line
    sha256: Sha256
    size: int | None = None
    record: Sha256 | None = None


class LockedPatch(Data):
    """A patch and the digest of every file of the engine after it was applied."""

    file: RelativeFile
    sha256: Sha256
    result: dict[str, Sha256] = Field(default_factory=dict)


class StackLock(Data):
    """Everything a stack resolves to. Written by `ops stack lock` only."""

    schema_version: Literal[1] = 1
    stack: Name
    wanted_sha256: Sha256 = Field(description="Digest of what the stack's file asks for; another one: the lock is old.")
    engine: str
    engine_version: str
    engine_commit: str | None
    python: str
    platform: str
    exclude_newer: str | None
    cuda: str | None
    nccl: str | None = Field(description="Version of NCCL in the locked wheels, as NCCL counts it; null: none.")
    kernel_archs: dict[str, tuple[Arch, ...]] = Field(description="Kernel package: archs it holds machine code for.")
    base: Image | None
    system: SystemPackages
    patches: tuple[LockedPatch, ...]
    packages: tuple[LockedPackage, ...]

    def package(self, name: str) -> LockedPackage | None:
        """The locked file of a package, or None."""
        return next((package for package in self.packages if package.name == name), None)


class BuiltImage(Data):
    """What `ops image build` made of a lock: NAME.image.json beside it."""

    stack: Name
    lock_sha256: Sha256
    repository: Line
    tag: Line
    id: Digest
    digest: Digest | None = Field(None, description="Manifest digest, once a registry holds it.")
