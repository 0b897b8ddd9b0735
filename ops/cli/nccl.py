"""`ops nccl sets|show`: the NCCL sets of this project."""

from typing import Annotated

import typer

from ops.cli import output
from ops.model.result import SCHEMA

app = typer.Typer(help="NCCL sets: named groups of NCCL variables with the topology they were tuned for.")
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


@app.command("sets")
def sets(as_json: Json = False) -> None:
    """List the sets and the profiles that use them."""
    from ops.flows.hosts import Project
    from ops.flows.nccl import all_sets

    rows = all_sets(Project.here())
    if as_json:
        output.print_json({**_head("nccl sets"), "sets": rows})
        return
    for row in rows:
        users = ", ".join(row["profiles"]) or "no profile"
        print(f"{row['name']}  for {row['topology']} links, {len(row['env'])} variables, used by {users}")
        if row["description"]:
            print(f"    {row['description']}")


@app.command("show")
def show(name: Annotated[str, typer.Argument(help="Name of a set in envs/nccl.")], as_json: Json = False) -> None:
    """Show one set: its variables, where they were measured, and what the engine adds by itself."""
    from ops.flows.hosts import Project
    from ops.flows.nccl import one_set

    row = one_set(Project.here(), name)
    if as_json:
        output.print_json({**_head("nccl show"), "set": row})
        return
    print(f"# {row['description']} (for {row['topology']} links; measured: {row['source']})")
    for variable, value in sorted(row["env"].items()):
        print(f"{variable}={value}")
    print(f"# used by {', '.join(row['profiles']) or 'no profile'}; the engine adds {', '.join(row['engine_adds'])}")


def _head(command: str) -> dict[str, object]:
    return {"schema": SCHEMA, "command": command, "outcome": "listed", "exit_code": 0}
