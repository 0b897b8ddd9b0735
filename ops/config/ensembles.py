"""Groups of the inventory whose hosts serve one model together: `ops_nodes` and `ops_dist_init_addr` in a group's vars.

A host's rank is its place in the group's list.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ops.model.inventory import HostSpec, Node

GROUP_VARIABLES = ("ops_nodes", "ops_dist_init_addr")
_ADDRESS = re.compile(r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+)(?::([0-9]{1,5}))?$")


@dataclass
class Placed:
    """Each member's node, and what is wrong with the group."""

    nodes: dict[str, Node] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def nodes_of(group: str, variables: Mapping[str, Any], members: Sequence[HostSpec]) -> Placed:
    """Give the hosts of one group their ranks. members: in the group's order."""
    found = Placed()
    nodes, written = variables.get("ops_nodes"), variables.get("ops_dist_init_addr")
    if nodes is None:
        found.problems.append("ops_dist_init_addr means nothing without ops_nodes")
    elif isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 2:
        found.problems.append(f"ops_nodes: {nodes!r}: a number of at least 2 is expected; one host needs no such group")
    elif len(members) != nodes:
        names = ", ".join(host.name for host in members) or "none"
        found.problems.append(
            f"ops_nodes: {nodes}, but the group has {len(members)} hosts ({names}); make a group for each model"
        )
    else:
        address, port, problem = _meeting_point(written, members)
        if problem:
            found.problems.append(problem)
            return found
        names_by_rank = tuple(host.name for host in members)
        for rank, host in enumerate(members):
            found.nodes[host.name] = Node(
                ensemble=group, rank=rank, members=names_by_rank, dist_address=address, dist_port=port
            )
    return found


def _meeting_point(written: Any, members: Sequence[HostSpec]) -> tuple[str, int | None, str]:
    """(address, port, problem): where the ranks meet; default: where SSH reaches rank 0."""
    if written is not None:
        match = _ADDRESS.match(written) if isinstance(written, str) else None
        port = int(match[2]) if match and match[2] else None
        if match is None or (port is not None and not 1 <= port <= 65_535):
            return "", None, f"ops_dist_init_addr: {written!r}: the address of rank 0 is wanted, :port or not"
        return match[1].strip("[]"), port, ""
    address = members[0].address
    if _loopback(address) and not all(_loopback(host.address) for host in members):
        problem = (
            f"the other hosts cannot reach rank 0 ({members[0].name}) at {address}: "
            "set ops_dist_init_addr to its address in their network"
        )
        return "", None, problem
    return address, None, ""


def _loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
