"""`ops image build|verify|list|push`: the image of a locked stack, proven from the inside."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli import output
from ops.errors import Exit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ops.model.verdict import Verdict

app = typer.Typer(help="Images: built from a stack's lock, proven from the inside.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of a locked stack.")]
Profile = Annotated[
    str | None, typer.Option("--profile", help="Also let the engine's own parser take this profile's command line.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


@app.command()
def build(name: Name, profile: Profile = None, as_json: Json = False) -> None:
    """Build the image of a stack's lock on the Docker daemon here, and prove it; exit 6 when it is another."""
    from ops.config.profiles import load_stack
    from ops.images.build import build as flow

    project = _project()
    built, verdicts = flow(project, load_stack(project, name), _say, argv=_argv(project, profile))
    _finish("image build", name, verdicts, as_json, built.id, "built")


@app.command()
def verify(
    name: Name,
    host: Annotated[
        str | None,
        typer.Option(
            "--host", help="Prove it on this host, where it is pulled first when it is not there; default: here."
        ),
    ] = None,
    profile: Profile = None,
    as_json: Json = False,
) -> None:
    """Compare the image with the lock inside it: packages, files, NCCL, flags, kernels. Exit 6 when it is another."""
    from ops.config.profiles import load_stack
    from ops.images.build import need_image
    from ops.images.build import verify as here

    project = _project()
    if host is None:
        verdicts = here(project, name, argv=_argv(project, profile), archs=load_stack(project, name).gpu_archs)
        _finish("image verify", name, verdicts, as_json, None, "proven")
        return
    _finish("image verify", name, _on_host(name, host, profile), as_json, need_image(project, name).id, "proven")


@app.command("list")
def list_images(as_json: Json = False) -> None:
    """List the images on this machine that were built from a lock."""
    from ops.images.build import listed

    rows = listed()
    if as_json:
        _print("image list", "listed", images=rows)
        return
    for row in rows:
        tags = " ".join(row["tags"])
        print(f"{row['id'][7:19]}  {row['stack']}  lock {row['lock'][:12]}  {row['size_mib']} MiB  {tags}")


@app.command()
def push(
    name: Name,
    to: Annotated[
        str | None, typer.Option("--to", help="Send it to this host over SSH instead of to its registry.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Push the image to its registry and keep the digest it has there; or send it to a host that reaches none."""
    from ops.images.build import push as flow

    project = _project()
    if to is None:
        pushed = flow(project, name, _say)
        if as_json:
            _print("image push", "pushed", stack=name, id=pushed.id, digest=pushed.digest)
        else:
            print(f"{pushed.repository}@{pushed.digest}")
        return
    _finish("image push", name, _on_host(name, to, None, send=True), as_json, None, "sent and proven")


def _on_host(name: str, host: str, profile: str | None, *, send: bool = False) -> "list[Verdict]":
    from ops.config.profiles import load_stack
    from ops.flows import software
    from ops.flows.hosts import Project, connected
    from ops.images.build import need_image
    from ops.images.transfer import load_on, software_of
    from ops.stacks.lock import need_lock
    from ops.stacks.proof import archs_of
    from ops.steps.stage import FETCH_S

    project = Project.here()
    spec = project.host(host)
    load_stack(project.root, name)
    lock, _ = need_lock(project.root, name)
    target = software_of(need_image(project.root, name))
    progress = output.Progress()
    with connected(spec) as connection:
        if send:
            load_on(project.root, name, connection, lambda text: progress.say(spec.name, text))
        else:
            connection.call(
                "stack.fetch",
                software=target,
                timeout_s=FETCH_S,
                wait_s=FETCH_S + 60.0,
                on_event=lambda event: progress.say(spec.name, event["say"]),
            )
        gpus = connection.call("machine.devices", wait_s=60.0)["gpus"]
        archs = archs_of(gpus) if lock.kernel_archs else []
        return software.prove(connection, target, lock, argv=_argv(project.root, profile, host), archs=archs)


def _argv(project: Path, profile: str | None, host: str | None = None) -> list[str]:
    if profile is None:
        return []
    from ops.config import load_profile
    from ops.flows.hosts import Project
    from ops.render.argv import engine_argv, words

    return words(engine_argv(load_profile(project, profile), Project.here().host(host)))


def _finish(
    command: str, name: str, verdicts: "Sequence[Verdict]", as_json: bool, image: str | None, word: str
) -> None:
    from ops.model.verdict import Outcome, combine, not_passed

    outcome = combine(verdicts)
    code = {Outcome.PASS: Exit.DONE, Outcome.FAIL: Exit.FOUND_WANTING}.get(outcome, Exit.INCONCLUSIVE)
    shown = word if outcome is Outcome.PASS else "found-wanting" if outcome is Outcome.FAIL else "inconclusive"
    if as_json:
        checks = [v.model_dump(mode="json") for v in verdicts]
        gate = {"verdict": outcome.value, "checks": checks}
        _print(command, shown, code=int(code), stack=name, image=image, gate=gate)
    else:
        for verdict in verdicts:
            print(verdict.line())
        print(f"{name}: {shown}" + (f" {image[7:19]}" if image else ""))
        for verdict in not_passed(verdicts)[:1]:
            print(f"hint: {verdict.remedy}", file=sys.stderr)
    raise typer.Exit(int(code))


def _project() -> Path:
    from ops.config import find_project

    return find_project(Path.cwd())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(command: str, outcome: str, *, code: int = 0, **fields: Any) -> None:
    output.print_json({"schema": "ops/1", "command": command, "outcome": outcome, "exit_code": code, **fields})
