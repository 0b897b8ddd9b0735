"""`ops verify`."""

from typing import Annotated

import typer

from ops.cli import output
from ops.errors import ConfigError


def verify(
    host: Annotated[
        str | None,
        typer.Option("--host", help="Host or pattern of the inventory; OPS_HOST, else `sandbox`, when absent."),
    ] = None,
    group: Annotated[str | None, typer.Option("--group", help="Group of the inventory, all its hosts at once.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print every check, not only what is wrong.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Is what was deployed still what is there, in every rank? Exit 6 when found wanting, 7 when inconclusive."""
    from ops.flows.hosts import Project
    from ops.flows.verify import verify_all

    if host and group:
        raise ConfigError("--host and --group exclude each other")
    results = verify_all(Project.here().hosts(group or host))
    if explain and not as_json:
        for result in results:
            for check in (result.gate or {}).get("checks", ()):
                print(f"{result.host}: {check['name']}: {check['outcome']}: {check['message']}")
    raise typer.Exit(output.finish("verify", results, as_json))
