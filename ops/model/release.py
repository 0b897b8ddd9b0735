"""`Release`: one rendered profile for one host, before it is a folder there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def follows(manifest: Mapping[str, Any] | None) -> bool:
    """Whether a release is a part of a model over several hosts that takes no requests itself: its rank is not 0."""
    node: Mapping[str, Any] = (manifest or {}).get("node") or {}
    return bool(node.get("rank", 0))


@dataclass(frozen=True)
class ReleaseFile:
    """One file of a release folder."""

    name: str
    content: bytes
    mode: int = 0o644


@dataclass(frozen=True)
class Release:
    """Content-addressed: the same profile, stack, set and host give the same bytes and the same id."""

    id: str
    profile: str
    host: str
    files: tuple[ReleaseFile, ...]
    manifest: dict[str, Any]

    def file(self, name: str) -> ReleaseFile:
        """Return the file called `name`.

        Raises: KeyError when the release has none of that name.
        """
        for candidate in self.files:
            if candidate.name == name:
                return candidate
        raise KeyError(f"release {self.id} has no file {name}; it has {', '.join(f.name for f in self.files)}")
