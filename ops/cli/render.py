"""`ops render`: write to a local folder exactly what a deploy would upload."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ops.errors import ConfigError

if TYPE_CHECKING:
    from ops.model.release import Release


def render(
    profile: Annotated[str, typer.Option(help="Name of the profile.")],
    out: Annotated[Path, typer.Option(help="Folder to write to: new, empty, or written by `ops render` before.")],
    host: Annotated[
        str | None, typer.Option(help="Host of the inventory; OPS_HOST, else `sandbox`, when absent.")
    ] = None,
    inventory: Annotated[
        Path | None, typer.Option(help="Inventory file; OPS_INVENTORY, else envs/hosts.yml, when absent.")
    ] = None,
    supervisor: Annotated[
        Literal["systemd", "supervisord"] | None,
        typer.Option(help="Where the inventory does not say: systemd or supervisord."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Write launch.sh, engine.env, the supervisor's file and manifest.json for a host; connects nowhere."""
    from ops.flows.hosts import Project

    project = Project.here()
    if inventory:
        project = replace(project, inventory=inventory)
    hosts = project.hosts(host)
    if len(hosts) != 1:
        raise ConfigError(f"--host {host} names {len(hosts)} hosts; a release is rendered for one")
    release = project.release(project.profile(profile), hosts[0], supervisor)
    _write(release, out)
    if as_json:
        row: dict[str, Any] = {
            "host": hosts[0].name,
            "instance": hosts[0].instance,
            "profile": profile,
            "release": release.id,
        }
        from ops.cli.output import print_json
        from ops.model.result import SCHEMA

        row |= {"outcome": "rendered", "out": str(out), "files": [file.name for file in release.files]}
        print_json({"schema": SCHEMA, "command": "render", "outcome": "rendered", "exit_code": 0, "hosts": [row]})
        return
    print(f"{release.id} for {hosts[0].name}: {', '.join(file.name for file in release.files)} in {out}")


def _write(release: "Release", out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        _make_room(out, {file.name for file in release.files})
        for file in release.files:
            target = out / file.name
            target.unlink(missing_ok=True)
            # The mode comes with the file, so that a secret is at no moment readable by others.
            handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode)
            with os.fdopen(handle, "wb") as stream:
                stream.write(file.content)
            target.chmod(file.mode)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror or error}") from error


def _make_room(out: Path, wanted: set[str]) -> None:
    present = {entry.name for entry in out.iterdir()}
    if not present:
        return
    try:
        manifest = json.loads((out / "manifest.json").read_bytes())
        ours = {*manifest["files"], "manifest.json"}
    except (OSError, ValueError, KeyError, TypeError):
        ours = set()
    foreign = present - ours
    if foreign:
        raise ConfigError(
            f"--out {out}: holds {', '.join(sorted(foreign)[:5])}, not written by ops",
            hint="name a new or empty folder",
        )
    for name in ours & present - wanted:
        (out / name).unlink()
