"""`ops … --group`: run the playbook, then say for every host what became of it and what it serves now."""

from collections.abc import Mapping, Sequence
from typing import Any

from ops.errors import Exit, OpsError
from ops.fleet.parallel import each
from ops.fleet.playbook import Followed, Show, run
from ops.flows.hosts import Project
from ops.flows.status import status
from ops.model.inventory import HostSpec
from ops.model.result import HostResult


def roll(
    project: Project, playbook: str, group: str, variables: Mapping[str, Any], show: Show, *, check: bool = False
) -> list[HostResult]:
    """Run `playbook` for `group` and return a result for each of its hosts, in the inventory's order.

    Hosts that the roll did not come to are `untouched` (exit code 2: nothing was done there), so that a fleet in which
    hosts differ ends in 5. Raises: OpsError when Ansible could not work, or a host failed without a word.
    """
    hosts = project.hosts(group)
    given = {key: value for key, value in variables.items() if value is not None}
    found = run(project, playbook, {**given, "target": group}, show, check=check)
    now = {result.host: result for result in each(hosts, status)}
    rows = [_row(host, now[host.name], found) for host in hosts]
    if found.code and not found.interrupted and all(row.exit_code == 0 for row in rows):
        raise OpsError(f"the playbook failed, but no host did: {_why(found)}\n{found.stderr}")
    return rows


def _row(host: HostSpec, now: HostResult, found: Followed) -> HostResult:
    """What became of one host, with what it serves now."""
    serves = {
        "state": now.details.get("state"),
        "serves": now.release,
        "admitted": now.details.get("admitted", False),
    }
    if host.name in found.diffs:
        serves["diff"] = found.diffs[host.name]
    result = found.results.get(host.name)
    if host.name in found.unanswered:
        return now.model_copy(
            update={
                "outcome": "unsafe",
                "exit_code": int(Exit.UNSAFE),
                "message": "the process that worked on it ended without a word; its guard undoes what is not confirmed",
                "hint": f"ops status --host {host.name}",
                "changed": None,
                "details": serves,
            }
        )
    if result is not None:
        row = HostResult.model_validate(result)
        return _contradicted(row, now).model_copy(update={"details": {**row.details, **serves}})
    message, hint = _untouched_because(host, found)
    unreachable = host.name in found.unreachable or serves["state"] == "unknown"
    return now.model_copy(
        update={
            "outcome": "unreachable" if unreachable else "untouched",
            "exit_code": int(Exit.REFUSED),
            "message": message or now.message,
            "hint": hint or now.hint,
            "changed": False,
            "details": serves,
        }
    )


def _contradicted(row: HostResult, now: HostResult) -> HostResult:
    """A host that was left well and is not well now, when all is over: the roll may not call it done."""
    well = row.outcome in ("deployed", "unchanged", "rolled-back", "reverted", "rebooted")
    if row.exit_code == 0 and well and row.release and now.release not in (row.release, None):
        update = {"outcome": "changed-since", "exit_code": int(Exit.UNSAFE)}
        return row.model_copy(update={**update, "message": f"{row.message}; but now {now.release} is current"})
    return row


def _untouched_because(host: HostSpec, found: Followed) -> tuple[str, str]:
    if host.name in found.unreachable:
        return found.unreachable[host.name], ""
    for name, task, message in found.failures:
        if name == host.name:
            return f"{task}: {message}", ""
    if found.interrupted:
        return "not touched: the roll was interrupted before it", ""
    if found.refused:
        return f"not touched: {found.refused}", ""
    failed = sorted({name for name, _, _ in found.failures} | set(found.unreachable))
    return f"not touched: the roll ended at {', '.join(failed) or 'its begin'}", ""


def _why(found: Followed) -> str:
    return "; ".join(f"{host}: {task}: {message}" for host, task, message in found.failures) or f"exit {found.code}"


def outcome_line(rows: Sequence[HostResult]) -> str:
    """How many hosts ended how, for people: `2 deployed, 1 untouched`."""
    outcomes = [row.outcome for row in rows]
    return ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))
