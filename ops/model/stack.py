"""`Stack`: the pinned software under a profile."""

from typing import Annotated, Literal

from pydantic import Field

from ops.model.base import Data
from ops.model.profile import Name
from ops.model.profile_parts import Line, Sha256

Version = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)*([a-z0-9.+-]*)$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class Image(Data):
    """A container image, by digest. A digest that nobody has read from a registry stays null and is refused later."""

    repository: Line = Field(description="Repository, without tag.")
    digest: Digest | None = Field(None, description="sha256:…; null: not known, runtime docker refuses.")


class Patch(Data):
    """A patch applied to the engine when the stack is built."""

    file: Line = Field(description="File, relative to the stack's.")
    sha256: Sha256 = Field(description="Its digest.")


class Stack(Data):
    """What the engine runs on. `engine_version` chooses the flag table, the log rules and the metric names."""

    name: Name = Field(description="Name of the stack: the file's name without `.yaml`.")
    description: str = Field("", description="One sentence.")
    engine: Literal["sglang"] = Field("sglang", description="The engine.")
    engine_version: Version = Field(description="Exact version of the engine.")
    engine_commit: str | None = Field(None, pattern=r"^[0-9a-f]{40}$", description="Commit, where built from source.")
    python: Version | None = Field(None, description="Python of the environment, major.minor.")
    cuda: Version | None = Field(None, description="CUDA of the wheels, major.minor.")
    gpu_archs: tuple[Annotated[str, Field(pattern=r"^sm_[0-9]+[a-z]?$")], ...] = Field(
        (), description="GPU architectures that the kernels must hold code for."
    )
    base: Image | None = Field(None, description="Base image of the build.")
    image: Image | None = Field(None, description="Built image that runtime docker starts.")
    requirements: tuple[Line, ...] = Field((), description="Requirements that the lock resolves.")
    constraints: dict[str, str] = Field(default_factory=dict, description="Package: exact version.")
    patches: tuple[Patch, ...] = Field((), description="Patches, in order.")
