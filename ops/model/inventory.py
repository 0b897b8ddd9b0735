"""`HostSpec` and `Inventory`: hosts as `envs/hosts.yml` names them, variables resolved."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ops.model.base import Data, Problem, RulesBroken
from ops.model.profile_parts import AbsolutePath, Address, Line

DIST_PORTS = range(20_000, 21_000, 10)
"""Where the ranks of one release meet. Each release has its own, so that ranks of two never join each other; ten apart,
since with attention DP the next six are used too. Source: SGLang 0.5.23 srt/server_args.py (PortArgs)."""


class Node(Data):
    """A host's place in an ensemble: a group of hosts that serve one model together."""

    ensemble: Line = Field(description="The inventory's group (`ops_nodes` in its vars).")
    rank: int = Field(ge=0, description="`--node-rank`: the host's place in the group. Rank 0 serves HTTP.")
    members: tuple[Line, ...] = Field(min_length=2, description="All hosts, in the order of their ranks.")
    dist_address: Line = Field(description="Address of rank 0 as the others reach it.")
    dist_port: int | None = Field(None, ge=1, le=65_535, description="Its port; null: each release has its own.")

    @property
    def leader(self) -> bool:
        """Whether this host has rank 0."""
        return self.rank == 0

    @property
    def nodes(self) -> int:
        """`--nnodes`."""
        return len(self.members)

    @property
    def dist_init_addr(self) -> str:
        """`--dist-init-addr`."""
        address = f"[{self.dist_address}]" if ":" in self.dist_address else self.dist_address
        return f"{address}:{self.dist_port or DIST_PORTS[0]}"


class HostSpec(Data):
    """How to reach one host and what is particular about rendering for it."""

    name: Line = Field(description="Name in the inventory.")
    groups: tuple[str, ...] = Field((), description="Groups the host is in, `all` left out.")
    address: Line = Field(description="ansible_host; default: the name.")
    port: int = Field(22, ge=1, le=65_535, description="ansible_port.")
    user: Line | None = Field(None, description="ansible_user; default: SSH's own.")
    become: bool = Field(False, description="ansible_become: use sudo for what needs root.")
    key_file: str | None = Field(None, description="ansible_ssh_private_key_file.")
    known_hosts: str = Field("~/.ssh/known_hosts", description="ops_known_hosts: file of host keys, checked strictly.")
    ssh_args: str = Field("", description="ansible_ssh_common_args: for OpenSSH and Ansible.")
    root: AbsolutePath = Field("/opt/ops", description="ops_root.")
    instance: str = Field("default", pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="ops_instance.")
    engine_python: AbsolutePath = Field("/opt/sglang/bin/python", description="ops_engine_python.")
    paths: dict[str, str] = Field(default_factory=dict, description="ops_paths: path prefix to the prefix here.")
    stacks: AbsolutePath | None = Field(
        None,
        description="ops_stacks: folder of the environments that `ops host install` makes; native releases start from "
        "there. null: from ops_engine_python.",
    )
    container_gpus: str = Field(
        "all", pattern=r"^(all|none|[A-Za-z0-9=,_-]+)$", description="ops_container_gpus: value of docker's --gpus."
    )
    container_ulimits: tuple[Annotated[str, Field(pattern=r"^[a-z]+=-?[0-9]+(:-?[0-9]+)?$")], ...] = Field(
        ("memlock=-1", "stack=67108864", "nofile=1048576:1048576"),
        description="ops_container_ulimits: values of docker's --ulimit; NCCL pins memory, 8 ranks open many files.",
    )
    container_mounts: dict[str, str] = Field(
        default_factory=dict,
        description="ops_container_mounts: folder of the host to folder in the container, writable.",
    )
    bind: Address | None = Field(None, description="ops_bind: IP address, replaces the profile's engine.host.")
    search_path: tuple[AbsolutePath, ...] = Field((), description="ops_search_path: folders before the standard PATH.")
    supervisor: Literal["systemd", "supervisord"] | None = Field(None, description="ops_supervisor; null: detect.")
    supervisor_conf: AbsolutePath | None = Field(None, description="ops_supervisor_conf: path of supervisord.conf.")
    supervisorctl: AbsolutePath | None = Field(None, description="ops_supervisorctl.")
    time_scale: float = Field(1.0, ge=0.1, le=1000, description="ops_time_scale: sandbox only.")
    node: Node | None = Field(None, description="Its part in serving one model over several hosts (ops_nodes).")

    @property
    def simulated(self) -> str | None:
        """ "x S" for a sandbox or lab host, whose inventory names its time scale; None for a real one."""
        return f"x {self.time_scale:g}" if "time_scale" in self.model_fields_set else None

    def ranks(self, of_model: int) -> int:
        """How many of a model's ranks (`Engine.ranks`) run here."""
        return of_model // self.node.nodes if self.node else of_model

    @property
    def instance_dir(self) -> str:
        """Folder of the instance on the host."""
        return f"{self.root.rstrip('/')}/{self.instance}"

    def path(self, path: str) -> str:
        """Map a profile's path to this host's: the longest prefix of `paths` that ends at a `/` wins."""
        best = ""
        for prefix in self.paths:
            trimmed = prefix.rstrip("/")
            if (path == trimmed or path.startswith(trimmed + "/")) and len(trimmed) >= len(best):
                best = trimmed
        for prefix, replacement in self.paths.items():
            if best and prefix.rstrip("/") == best:
                return replacement.rstrip("/") + path[len(best) :]
        return path

    @model_validator(mode="after")
    def _prefixes_are_absolute(self) -> "HostSpec":
        problems = [
            Problem(("ops_paths", prefix), f"{prefix!r}: {replacement!r}: both sides are absolute paths")
            for prefix, replacement in self.paths.items()
            if not (prefix.startswith("/") and replacement.startswith("/"))
        ]
        if problems:
            raise RulesBroken(problems)
        return self


class Inventory(Data):
    """Every host of one inventory file, in the file's order."""

    file: str = Field(description="The file it was read from.")
    hosts: tuple[HostSpec, ...] = Field(description="Hosts.")
    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict, description="Group: its hosts, children included.")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all hosts."""
        return tuple(host.name for host in self.hosts)

    def ensemble(self, group: str) -> tuple[HostSpec, ...]:
        """The hosts of a group that serve one model together, by rank; empty when the group is none."""
        found = [host for host in self.hosts if host.node is not None and host.node.ensemble == group]
        return tuple(sorted(found, key=lambda host: host.node.rank if host.node else 0))
