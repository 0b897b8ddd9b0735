"""What the release promised, read from its manifest."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ops.model.gate import Server


def environment(server: Server) -> dict[str, str]:
    """Return the variables every process of the engine must hold (no secrets): NCCL set, `env:` and what ops adds.

    PATH is left out: it finds programs, and an engine may extend it for its children.
    """
    return {str(k): str(v) for k, v in (server.manifest.get("environment") or {}).items() if k != "PATH"}


def arguments(server: Server) -> list[str]:
    """Return the engine's command line after `-m sglang.launch_server`; empty when the manifest does not hold it."""
    return [str(word) for word in server.manifest.get("argv") or ()]


def release(server: Server) -> str:
    """Return the id of the release under judgement."""
    return str(server.manifest["release"])


def local_ranks(server: Server) -> int:
    """Return how many ranks run on this host: all of the profile's, or its share of a model over several hosts."""
    expected: int = (server.manifest.get("expect") or {}).get("ranks", server.profile.engine.ranks)
    return expected


def prompts(manifest: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the prompts that the release's profile brings, or None."""
    traffic = (manifest.get("profile") or {}).get("traffic") or {}
    found: dict[str, str] | None = traffic.get("prompts")
    return found


def stack_digest(manifest: Mapping[str, Any]) -> str:
    """Return the digest of the pinned software that a release was rendered for."""
    given = manifest.get("stack_lock_sha256")
    if given:
        return str(given)
    return hashlib.sha256(json.dumps(manifest.get("stack"), sort_keys=True).encode()).hexdigest()


def own(facts: Mapping[str, Any], wanted_release: str) -> list[Mapping[str, Any]]:
    """Return the processes of this release: those that carry its marker, and their descendants."""
    processes = list(facts.get("processes") or [])
    marked = [p for p in processes if p.get("release") == wanted_release]
    pids = {p["pid"] for p in marked}
    return [p for p in processes if p["pid"] in pids or p.get("ppid") in pids]


def ranks(processes: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the scheduler processes: one a GPU.

    Source: process titles `sglang::scheduler`, `sglang::scheduler_TP0` (SGLang 0.5.17 and 0.5.23).
    """
    return [p for p in processes if "sglang::scheduler" in str(p.get("title", ""))]
