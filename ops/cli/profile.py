"""`ops profile list|show|validate|diff|schema`: look at profiles and check them; touches no host."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ops.errors import ConfigError

if TYPE_CHECKING:
    from ops.config import Resolved

app = typer.Typer(help="Profiles: what to run, as data, from envs/profiles/.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of a profile.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


@app.command("list")
def list_profiles(as_json: Json = False) -> None:
    """List every profile; one that is broken is listed with its first mistake."""
    from ops.config import profile_names

    rows = [_row(name) for name in profile_names(_project())]
    if as_json:
        _print_json("profile list", "listed", profiles=rows)
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        print(f"{row['name']:<{width}}  {row['description'] if row['valid'] else 'BROKEN: ' + row['error']}")


@app.command()
def show(
    name: Name,
    origin: Annotated[bool, typer.Option("--origin", help="Say for each value where it came from.")] = False,
    as_json: Json = False,
) -> None:
    """Print a profile as it is after `extends` and OPS_… settings."""
    import yaml

    from ops.config import resolve_profile
    from ops.model.base import dotted

    resolved = resolve_profile(_project(), name)
    document = resolved.profile.model_dump(mode="json")
    origins = {dotted(path): resolved.origin(path) for path, _ in resolved.values()}
    if as_json:
        extra = {"origins": origins} if origin else {}
        row = {"name": name, "extends": resolved.chain[1:], **extra, "profile": document}
        _print_json("profile show", "shown", profiles=[row])
    elif origin:
        values = [(dotted(path), json.dumps(value, ensure_ascii=False)) for path, value in resolved.values()]
        key_width, value_width = (max(len(row[column]) for row in values) for column in (0, 1))
        for key, value in values:
            print(f"{key:<{key_width}}  {value:<{min(value_width, 60)}}  {origins[key]}")
    else:
        print(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), end="")


@app.command()
def validate(
    names: Annotated[list[str] | None, typer.Argument(help="Profiles; default: all.")] = None,
    as_json: Json = False,
) -> None:
    """Check profiles with all they name: stack, NCCL set, flags of the pinned engine, fallback. Exit 2 on a mistake."""
    from ops.config import profile_names, resolve_profile

    project = _project()
    wanted = names or profile_names(project)
    mistakes: list[ConfigError] = []
    for name in wanted:
        try:
            resolve_profile(project, name)
        except ConfigError as error:
            mistakes.append(error)
        else:
            if not as_json:
                print(f"{name}: valid")
    if mistakes:
        raise ConfigError("\n".join(e.message for e in mistakes), hint=next((e.hint for e in mistakes if e.hint), ""))
    if as_json:
        _print_json("profile validate", "valid", profiles=[{"name": name, "valid": True} for name in wanted])


@app.command()
def diff(a: Name, b: Name, as_json: Json = False) -> None:
    """Show the keys in which two resolved profiles differ, the values of their NCCL sets among them."""
    from ops.config import resolve_profile

    project = _project()
    left, right = _flat(resolve_profile(project, a)), _flat(resolve_profile(project, b))
    keys = [key for key in dict.fromkeys([*left, *right]) if left.get(key) != right.get(key)]
    differences = [{"key": key, "a": left.get(key), "b": right.get(key)} for key in keys]
    if as_json:
        _print_json("profile diff", "same" if not keys else "different", a=a, b=b, differences=differences)
        return
    width = max((len(key) for key in keys), default=0)
    for row in differences:
        print(f"{row['key']:<{width}}  {_short(row['a'])} -> {_short(row['b'])}")
    if not keys:
        print(f"{a} and {b} are the same but for their names")


@app.command()
def schema(
    kind: Annotated[
        Literal["profile", "stack", "nccl"], typer.Option(help="Kind of file: profile, stack or nccl.")
    ] = "profile",
) -> None:
    """Print the JSON Schema of the files under envs/, for editors."""
    from ops.config.schema import file_schema

    print(json.dumps(file_schema(kind), indent=2, ensure_ascii=False))


def _row(name: str) -> dict[str, Any]:
    from ops.config import resolve_profile

    try:
        profile = resolve_profile(_project(), name).profile
    except ConfigError as error:
        lines = error.message.splitlines()
        return {"name": name, "valid": False, "error": lines[min(1, len(lines) - 1)].strip(), "description": ""}
    spec = profile.speculation
    return {
        "name": name,
        "valid": True,
        "description": profile.description,
        "stack": profile.stack,
        "nccl": profile.nccl,
        "fallback": profile.fallback,
        "speculation": {"algorithm": spec.algorithm, "steps": spec.steps, "draft_tokens": spec.draft_tokens}
        if spec
        else None,
    }


def _flat(resolved: "Resolved") -> dict[str, Any]:
    from ops.model.base import dotted

    values = {dotted(path): value for path, value in resolved.values() if path[0] not in ("name", "description")}
    return {**values, **{f"nccl.env.{name}": value for name, value in sorted(resolved.nccl.env.items())}}


def _short(value: Any) -> str:
    return "unset" if value is None else json.dumps(value, ensure_ascii=False)


def _project() -> Path:
    from ops.config import find_project

    return find_project(Path.cwd())


def _print_json(command: str, outcome: str, **fields: Any) -> None:
    from ops.cli.output import print_json
    from ops.model.result import SCHEMA

    print_json({"schema": SCHEMA, "command": command, "outcome": outcome, "exit_code": 0, **fields})
