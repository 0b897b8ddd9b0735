"""`ops stack lock|check|diff|list`: pin all the software under a profile; touches no host."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli import output
from ops.errors import ConfigError, Exit

if TYPE_CHECKING:
    from ops.model.stack import Image

app = typer.Typer(help="Stacks: the pinned software under a profile, from envs/stacks/.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of a stack.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


@app.command()
def lock(
    name: Name,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Read every wheel again instead of trusting the present lock.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Resolve a stack for its own platform and Python, and write NAME.lock: every file with its digest."""
    from ops.stacks.compare import differences
    from ops.stacks.lock import lock_bytes, lock_path, make_lock, read_lock, stack_folder

    project, stack = _stack(name)
    before = read_lock(project, name)
    made = make_lock(
        stack,
        stack_folder(project),
        known=None if refresh or before is None else before[0],
        read_digest=_read_digest,
        say=_say,
    )
    content = lock_bytes(made)
    path = lock_path(project, name)
    changed = not path.is_file() or path.read_bytes() != content
    if changed:
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_bytes(content)
        temporary.replace(path)
    rows = [difference.line() for difference in differences(before[0], made)] if before else []
    if as_json:
        _print("stack lock", "locked" if changed else "unchanged", stack=name, file=_shown(path), differences=rows)
        return
    for row in rows:
        print(row)
    nccl = f", NCCL {made.nccl}" if made.nccl else ""
    print(f"{_shown(path)}: {'written' if changed else 'unchanged'}, {len(made.packages)} packages{nccl}")


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Stacks; default: all.")] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Only compare file and lock; do not resolve again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Is each lock what its stack asks for, and does it resolve to the same? Exit 6 if not, 7 if that is not known."""
    from ops.stacks.check import check as judge

    rows = [judge(*_stack(name), read_digest=None if offline else _read_digest, say=_say) for name in _names(names)]
    wanting = any(row.problems for row in rows)
    unknown = any(row.unknown for row in rows)
    code = Exit.FOUND_WANTING if wanting else Exit.INCONCLUSIVE if unknown else Exit.DONE
    outcome = "wanting" if wanting else "inconclusive" if unknown else "good"
    if as_json:
        stacks = [{"name": r.name, "problems": list(r.problems), "unknown": list(r.unknown)} for r in rows]
        _print("stack check", outcome, code=int(code), stacks=stacks)
    else:
        for row in rows:
            for text in (*row.problems, *(f"not known: {text}" for text in row.unknown)):
                print(f"{row.name}: {text}")
            if not row.problems and not row.unknown:
                print(f"{row.name}: {row.summary}")
        if wanting:
            print("hint: ops stack lock NAME, then look at the difference before you deploy it", file=sys.stderr)
    raise typer.Exit(int(code))


@app.command()
def diff(a: Name, b: Name, as_json: Json = False) -> None:
    """Show in what two locks differ: engine, kernels, NCCL, base image, packages."""
    from ops.stacks.compare import differences
    from ops.stacks.lock import need_lock

    project = _project()
    found = differences(need_lock(project, a)[0], need_lock(project, b)[0])
    if as_json:
        rows = [{"key": d.key, "a": d.a, "b": d.b} for d in found]
        _print("stack diff", "different" if found else "same", a=a, b=b, differences=rows)
        return
    for difference in found:
        print(difference.line())
    if not found:
        print(f"{a} and {b} are locked to the same")


@app.command("list")
def list_stacks(as_json: Json = False) -> None:
    """List every stack with the state of its lock and of its image."""
    rows = [_row(name) for name in _names(None)]
    if as_json:
        _print("stack list", "listed", stacks=rows)
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        print(f"{row['name']:<{width}}  {row['engine']} {row['engine_version']}, {row['lock']}, {row['image']}")


def _row(name: str) -> dict[str, Any]:
    from ops.stacks.compare import stale
    from ops.stacks.lock import read_image, read_lock

    project, stack = _stack(name)
    found, image = read_lock(project, name), read_image(project, name)
    text = "not locked"
    if found is not None:
        why = stale(stack, found[0])
        text = f"lock is old: {why}" if why else f"locked ({len(found[0].packages)} packages)"
    shown = "no image"
    if image is not None:
        built = found is not None and image.lock_sha256 == found[1]
        shown = f"image {image.id[7:19]}" if built else f"image {image.id[7:19]} of an older lock"
    return {
        "name": name,
        "engine": stack.engine,
        "engine_version": stack.engine_version,
        "lock": text,
        "lock_sha256": found[1] if found else None,
        "image": shown,
        "image_id": image.id if image else None,
    }


def _stack(name: str) -> Any:
    from ops.config.profiles import load_stack

    project = _project()
    return project, load_stack(project, name)


def _names(names: list[str] | None) -> list[str]:
    from ops.config.profiles import names_in

    return names or names_in(_project(), "stack")


def _project() -> Path:
    from ops.config import find_project

    return find_project(Path.cwd())


def _read_digest(image: "Image") -> str | None:
    from ops.images.daemon import registry_digest

    try:
        return registry_digest(image)
    except ConfigError as error:
        _say(f"{image.reference}: {error.message}")
        return None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _shown(path: Path) -> str:
    return str(Path(*path.parts[-3:]))


def _print(command: str, outcome: str, *, code: int = 0, **fields: Any) -> None:
    output.print_json({"schema": "ops/1", "command": command, "outcome": outcome, "exit_code": code, **fields})
