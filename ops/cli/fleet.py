"""What the commands with `--group` share: run the playbook, show it, print the one document."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ops.cli import output
from ops.errors import ConfigError
from ops.model.result import document

if TYPE_CHECKING:
    from ops.fleet.ensemble import Work
    from ops.flows.hosts import Project
    from ops.model.inventory import HostSpec


def only(host: str | None, group: str) -> None:
    """Raises: ConfigError when both a host and a group are named."""
    if host is not None:
        raise ConfigError(f"--host {host} and --group {group} exclude each other")


def together(command: str, members: "Sequence[HostSpec]", work: "Work", as_json: bool) -> int:
    """Do `work` on all hosts that serve one model together, as one, and return the exit code."""
    from ops.fleet.ensemble import together as lead

    results = lead(members, work, output.Progress())
    if not as_json:
        for result in results:
            for step in result.details.get("plan", ()):
                print(f"{result.host}: {step['kind']}", *(f"{key}={value}" for key, value in step["args"].items()))
    return output.finish(command, results, as_json)


def run(
    command: str,
    project: "Project",
    playbook: str,
    group: str,
    variables: Mapping[str, Any],
    as_json: bool,
    *,
    check: bool = False,
) -> int:
    """Run `playbook` for a group and return the exit code."""
    from ops.cli.fleet_progress import FleetProgress, final_table
    from ops.fleet.roll import roll

    with FleetProgress([host.name for host in project.hosts(group)]) as progress:
        rows = roll(project, playbook, group, variables, progress, check=check)
    final_table(rows)
    if as_json:
        return output.finish(command, rows, True)
    for row in rows:
        if row.details.get("diff"):
            print(row.details["diff"])
        output.print_result(row)
    return int(document(command, rows)["exit_code"])
