"""Hosts that rendering tests render for, and a shorthand for rendering from a project."""

from pathlib import Path
from typing import Any

from ops.config import resolve_profile
from ops.model.inventory import HostSpec
from ops.model.release import Release
from ops.render import render

HOSTS = {
    "systemd": HostSpec(name="gpu-a", address="10.0.0.1", supervisor="systemd"),
    "supervisord": HostSpec(
        name="gpu-b",
        address="10.0.0.2",
        supervisor="supervisord",
        root="/workspace/ops",
        engine_python="/workspace/sglang/bin/python",
        paths={"/shared": "/workspace/shared", "/data": "/workspace/data"},
        bind="10.0.0.2",
        search_path=("/workspace/bin",),
    ),
}


def rendered(
    project: Path,
    profile: str,
    host: HostSpec = HOSTS["supervisord"],
    overrides: dict[str, Any] | None = None,
    secrets: dict[str, str] | None = None,
) -> Release:
    resolved = resolve_profile(project, profile, overrides, environ={})
    return render(resolved.profile, resolved.stack, resolved.nccl, host, secrets=secrets)


def lay_down(release: Release, folder: Path) -> Path:
    """Write a release as an upload does."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in release.files:
        target = folder / file.name
        target.write_bytes(file.content)
        target.chmod(file.mode)
    return folder
