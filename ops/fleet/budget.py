"""How many hosts may be out of traffic, and in which order hosts are taken. Pure functions of status rows.

A host is *out* when it should serve and does not take traffic, or cannot be asked. A host on which nothing was ever
deployed is no loss to anybody, so it is not out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
"""A host's status as `ops status --json` prints it."""


@dataclass(frozen=True)
class Budget:
    """Whether a wave may begin. out: hosts already out of traffic, with the reason. taking: hosts it would take out."""

    allowed: bool
    out: Mapping[str, str]
    taking: tuple[str, ...]
    limit: int

    @property
    def sentence(self) -> str:
        """What was counted, for the operator."""
        out = "; ".join(f"{host} ({reason})" for host, reason in sorted(self.out.items())) or "none"
        return (
            f"max_unavailable is {self.limit}; already out of traffic: {out}; "
            f"this wave would take out: {', '.join(self.taking) or 'none'}"
        )


def in_service(row: Row) -> bool:
    """Whether the host takes traffic now."""
    return bool(row.get("state") == "serving" and row.get("admitted"))


def out_of_service(row: Row) -> str:
    """Why a host counts against the budget; empty when it does not."""
    state = str(row.get("state", "unknown"))
    if state == "unknown":
        return f"unreachable: {row.get('message', '')}".rstrip(": ")
    if state == "empty" or in_service(row):
        return ""
    return state if state != "serving" else "not admitted"


def budget(rows: Mapping[str, Row], wave: Sequence[str], limit: int) -> Budget:
    """Decide whether `wave` may begin.

    Args: rows: every host of the fleet. wave: hosts that begin now. limit: hosts out of traffic at one moment.
    """
    out = {host: reason for host, row in rows.items() if host not in wave and (reason := out_of_service(row))}
    taking = tuple(host for host in wave if in_service(rows[host]))
    return Budget(not taking or len(out) + len(taking) <= limit, out, taking, limit)


def order(rows: Mapping[str, Row]) -> tuple[str, ...]:
    """The roll's order: hosts that serve nothing first (they cost nobody anything), then as in `rows`; hosts that
    cannot be asked are left out."""
    reachable = [host for host, row in rows.items() if row.get("state", "unknown") != "unknown"]
    return tuple(sorted(reachable, key=lambda host: in_service(rows[host])))
