"""Tasks that are about the fleet and run once: the budget of a wave, and putting hosts back."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from ops.fleet.budget import Row, budget
from ops.fleet.host_task import Told
from ops.fleet.parallel import each
from ops.flows.rollback import rollback
from ops.flows.status import status
from ops.model.inventory import HostSpec
from ops.model.ports import Reporter
from ops.model.result import HostResult


class FleetReporter(Reporter, Protocol):
    """Also tells what became of a host that is not the task's own."""

    def result(self, result: HostResult) -> None: ...

    def refused(self, reason: str) -> None: ...


def rows(fleet: Sequence[HostSpec]) -> dict[str, Row]:
    """Every host's status as a row, in the fleet's order."""
    found = each(fleet, status)
    return {result.host: {"message": result.message, **result.details} for result in found}


def keep_budget(
    spec: HostSpec, fleet: Sequence[HostSpec], wave: Sequence[str], limit: int, reporter: FleetReporter
) -> Told:
    """Fail when `wave` would leave more than `limit` hosts of the fleet out of traffic."""
    found = budget(rows(fleet), wave, limit)
    details = {"out": dict(found.out), "taking": list(found.taking)}
    base = HostResult.on(spec, outcome="allowed", changed=False, details=details)
    if found.allowed:
        return Told(base.model_copy(update={"message": found.sentence}))
    reporter.refused(f"too few hosts would serve: {found.sentence}")
    update = {
        "outcome": "refused",
        "exit_code": 2,
        "message": f"too few hosts would serve: {found.sentence}",
        "hint": "bring back the hosts that are out (ops status, ops start), or raise rollout.max_unavailable",
    }
    return Told(base.model_copy(update=update))


def revert(
    spec: HostSpec, fleet: Sequence[HostSpec], wanted: Mapping[str, str | None], limit: int, reporter: FleetReporter
) -> Told:
    """Put hosts back one by one, each within the budget. Fails when one stays as it is."""
    by_name = {host.name: host for host in fleet}
    lines, kept = [], 0
    for name, release in wanted.items():
        result = _back(by_name[name], release, fleet, limit, reporter)
        reporter.result(result)
        kept += result.outcome != "reverted"
        lines.append(f"{name}: {result.outcome}: {result.message}")
    return Told(
        HostResult.on(
            spec,
            outcome="kept" if kept else "reverted",
            exit_code=5 if kept else 0,
            changed=kept < len(wanted),
            message="; ".join(lines),
        )
    )


def _back(
    host: HostSpec, release: str | None, fleet: Sequence[HostSpec], limit: int, reporter: FleetReporter
) -> HostResult:
    now = status(host)
    if release is None:
        message = f"stays on {now.release}: there was no release before it"
        return now.model_copy(update={"outcome": "kept", "changed": True, "message": message})
    found = budget(rows(fleet), [host.name], limit)
    if not found.allowed:
        message = f"stays on {now.release}: {found.sentence}"
        return now.model_copy(update={"outcome": "kept", "changed": True, "message": message})
    reporter.say(host.name, f"going back to {release}, because the roll failed")
    result = rollback(host, release, reporter)
    if result.exit_code:
        return result
    message = f"back on {release}, gated, because the roll failed"
    return result.model_copy(update={"outcome": "reverted", "exit_code": 3, "message": message})
