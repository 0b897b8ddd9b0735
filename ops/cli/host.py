"""`ops host`: what is done to a host itself."""

from typing import Annotated

import typer

from ops.cli import output

app = typer.Typer(help="What is done to a host itself.", no_args_is_help=True)


@app.command()
def install(
    stack: Annotated[str, typer.Option("--stack", help="Name of a locked stack.")],
    host: Annotated[
        str | None, typer.Option("--host", help="Host of the inventory; OPS_HOST, else `sandbox`, when absent.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="Also let the engine's own parser take this profile's command line.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Make an environment from the stack's lock in a new folder of the host, and prove it; what runs is not touched."""
    from ops.flows.hosts import Project
    from ops.flows.install import install as flow

    project = Project.here()
    result = flow(project, stack, project.host(host), output.Progress(), profile=profile)
    raise typer.Exit(output.finish("host install", [result], as_json))


@app.command("reboot")
def reboot(
    host: Annotated[
        str | None, typer.Option("--host", help="Host of the inventory; OPS_HOST, else `sandbox`, when absent.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="Group of the inventory: one host at a time, each proven.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Prove that the same release serves with the same environment, then admit.")
    ] = False,
    patience: Annotated[
        float, typer.Option("--patience", min=10, help="Seconds until SSH must answer again; 8 GPUs take minutes.")
    ] = 1200,
    break_lock: Annotated[
        bool, typer.Option("--break-lock", help="Undo what a dead run left pending now, instead of waiting.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Drain, reboot, wait; with --verify prove the server that came back, and let traffic in again."""
    from ops.flows.hosts import Project
    from ops.flows.reboot import reboot as flow

    if group is not None:
        from ops.cli import fleet

        fleet.only(host, group)
        wanted = {"patience_s": patience, "break_lock": break_lock}
        raise typer.Exit(fleet.run("host reboot", Project.here(), "reboot.yml", group, wanted, as_json))
    spec = Project.here().host(host)
    result = flow(spec, output.Progress(), verify=verify, patience_s=patience, break_lock=break_lock)
    raise typer.Exit(output.finish("host reboot", [result], as_json))
