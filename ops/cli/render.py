"""`ops render`: write to a local folder exactly what a deploy would upload."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ops.errors import ConfigError

if TYPE_CHECKING:
    from ops.model.release import Release


def render(
    profile: Annotated[str, typer.Option(help="Name of the profile.")],
    out: Annotated[Path, typer.Option(help="Folder to write to: new, empty, or written by `ops render` before.")],
    host: Annotated[str | None, typer.Option(help="Host of the inventory.  [default: OPS_HOST, else sandbox]")] = None,
    inventory: Annotated[Path | None, typer.Option(help="Inventory file.  [default: envs/hosts.yml]")] = None,
    supervisor: Annotated[
        Literal["systemd", "supervisord"] | None,
        typer.Option(help="Where the inventory does not say: systemd or supervisord."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Write launch.sh, engine.env, the supervisor's file and manifest.json for a host; connects nowhere."""
    from ops.config import default_host, find_project, hosts_of, load_inventory, resolve_profile, secret_values
    from ops.render import render as render_release

    project = find_project(Path.cwd())
    resolved = resolve_profile(project, profile)
    known = load_inventory(project, inventory)
    hosts = hosts_of(known, host) if host else (default_host(known),)
    if len(hosts) != 1:
        raise ConfigError(f"--host {host} names {len(hosts)} hosts; a release is rendered for one")
    release = render_release(
        resolved.profile,
        resolved.stack,
        resolved.nccl,
        hosts[0],
        supervisor=supervisor,
        secrets=secret_values(resolved.profile.secrets, project),
    )
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
