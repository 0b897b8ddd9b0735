"""From names to things: the project's files, a host's connection, a run on it."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ops.config.inventory import default_host, hosts_of, load_inventory
from ops.config.profiles import load_nccl, load_profile, load_stack
from ops.config.settings import find_project, load_settings, secret_values
from ops.hosts.ssh import SshHost
from ops.model.inventory import HostSpec
from ops.model.ports import Peers, Reporter
from ops.model.profile import Profile
from ops.model.release import Release
from ops.render.release import SupervisorName, render
from ops.routers.none import Router
from ops.run import Identity, Run, observe


@dataclass(frozen=True)
class Project:
    """The folder that holds `envs/`, and what its settings say.

    Attributes:
        secrets: values that the caller has from elsewhere (Ansible Vault); they win over the environment.
        default_host: OPS_HOST; the host of a command that names none.
    """

    root: Path
    inventory: Path | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    default_host: str | None = None

    @classmethod
    def here(cls) -> "Project":
        root = find_project(Path.cwd())
        settings = load_settings(root)
        return cls(root, settings.inventory, default_host=settings.host)

    def hosts(self, pattern: str | None) -> tuple[HostSpec, ...]:
        """The hosts a pattern names; without one the default host."""
        inventory = load_inventory(self.root, self.inventory)
        return hosts_of(inventory, pattern) if pattern else (default_host(inventory, self.default_host),)

    def host(self, name: str | None) -> HostSpec:
        """One host. Raises: ConfigError when there is none of that name, or several."""
        from ops.errors import ConfigError

        found = self.hosts(name)
        if len(found) != 1:
            raise ConfigError(f"{name} names {len(found)} hosts; this command takes one", hint="see ops deploy --group")
        return found[0]

    def ensemble(self, group: str) -> tuple[HostSpec, ...]:
        """The hosts of a group that serve one model together, by rank; empty when the group is none."""
        return load_inventory(self.root, self.inventory).ensemble(group)

    def profile(self, name: str) -> Profile:
        return load_profile(self.root, name)

    def release(self, profile: Profile, host: HostSpec, supervisor: SupervisorName | None = None) -> Release:
        """Render `profile` for `host`: exactly what a deploy uploads. `supervisor`: what was detected there."""
        return render(
            profile,
            load_stack(self.root, profile.stack),
            load_nccl(self.root, profile.nccl),
            host,
            supervisor=supervisor,
            secrets=secret_values(profile.secrets, self.root, {**os.environ, **self.secrets}),
        )


@contextmanager
def connected(spec: HostSpec) -> Iterator[SshHost]:
    """A host's connection for one command."""
    host = SshHost(spec)
    try:
        host.connect()
        yield host
    finally:
        host.close()


@contextmanager
def run_on(spec: HostSpec, reporter: Reporter, peers: Peers | None = None) -> Iterator[Run]:
    """A run on a host, not yet its owner."""
    from ops.flows.gating import remember, run_gate

    with connected(spec) as host:
        yield Run(
            host=host,
            router=Router(),
            identity=Identity.new(),
            reporter=reporter,
            gate=run_gate,
            remember=remember,
            facts=observe(host),
            peers=peers,
        )
