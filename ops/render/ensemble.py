"""What a release says of the others that serve the same model: one rank a host, each with its own release. Pure."""

import hashlib
from typing import Any

from ops.errors import ConfigError
from ops.model.inventory import DIST_PORTS, HostSpec
from ops.model.nccl import NcclSet
from ops.model.profile import Profile
from ops.model.stack import Stack

_OURS = ("nnodes", "node-rank", "dist-init-addr", "nccl-init-addr")
_SPREAD = ("pp-size", "pipeline-parallel-size", "dp-size", "data-parallel-size")


def met(profile: Profile, stack: Stack, nccl: NcclSet, host: HostSpec) -> HostSpec:
    """The host with the port at which the ranks of this release meet; unchanged when it serves alone.

    Raises: ConfigError when the profile cannot be shared out over the ensemble.
    """
    node = host.node
    if node is None:
        return host
    flags = {key.replace("_", "-").removeprefix("--") for key in profile.engine.flags}
    if flags & {*_OURS}:
        raise ConfigError(
            f"profile {profile.name} sets {', '.join(sorted(flags & {*_OURS}))}, which ops renders for each host of "
            f"group {node.ensemble}",
            hint="remove them from engine.flags; ops_nodes and ops_dist_init_addr of the group say it",
        )
    if flags & {*_SPREAD}:
        raise ConfigError(
            f"profile {profile.name} sets {', '.join(sorted(flags & {*_SPREAD}))}: over several hosts ops knows "
            "tensor parallelism only",
            hint=f"use engine.tensor_parallel for all GPUs of group {node.ensemble}",
        )
    if profile.engine.tensor_parallel % node.nodes:
        raise ConfigError(
            f"profile {profile.name}: engine.tensor_parallel {profile.engine.tensor_parallel} cannot be shared out "
            f"over the {node.nodes} hosts of group {node.ensemble}",
            hint="each host holds the same number of ranks: choose a multiple",
        )
    if node.dist_port is not None:
        return host
    number = int(_digest(profile, stack, nccl, host)[:8], 16) % len(DIST_PORTS)
    return host.model_copy(update={"node": node.model_copy(update={"dist_port": DIST_PORTS[number]})})


def in_manifest(profile: Profile, stack: Stack, nccl: NcclSet, host: HostSpec) -> dict[str, Any]:
    """The manifest's `node`; nothing for a host that serves alone.

    `together` is the same in the releases of all members, whatever else differs between their hosts.
    """
    node = host.node
    if node is None:
        return {}
    together = f"{profile.name}-{_digest(profile, stack, nccl, host)[:12]}"
    return {"node": {**node.model_dump(mode="json"), "nodes": node.nodes, "together": together}}


def _digest(profile: Profile, stack: Stack, nccl: NcclSet, host: HostSpec) -> str:
    """Of all that the members have in common."""
    assert host.node is not None
    place = (host.node.ensemble, *host.node.members, host.node.dist_address)
    parts = (profile.model_dump_json(), stack.model_dump_json(), str(stack.lock_sha256), nccl.model_dump_json(), *place)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
