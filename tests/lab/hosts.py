"""Lab hosts in containers: a Debian server with systemd, one with Docker inside, one without systemd.

`Lab` makes them, each with its own address in a network of this machine only (nothing is published), and a `Host`
is used like a real one: over SSH, with reboots and power cuts. Invariant: Docker itself is the record of what exists,
by labels; there is no state file to go stale.
"""

import ipaddress
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ops.sandbox.engine.install import Simulation

from .images import ensure_image
from .login import Inventory, Login
from .machine import CHECKOUT, LAB_FOLDER, PREFIX, CommandFailed, docker, locked
from .payload import Keys, host_payload, make_keys

NETWORK = PREFIX
SUBNET = ipaddress.ip_network("10.213.77.0/24")
LOGIN_S = 90

CAPABILITIES = {
    # A server's root may trace and configure its network; systemd mounts.
    "systemd": ("SYS_ADMIN", "SYS_BOOT", "SYS_PTRACE", "NET_ADMIN"),
    # Not --privileged: where root lacks SYS_RESOURCE that is refused.
    "docker": ("ALL",),
    # What a rented container gets: Docker's defaults. Its root cannot read the environ of another user's process.
    "supervisord": (),
}
KINDS = tuple(CAPABILITIES)


@dataclass(frozen=True)
class Settings:
    """How a host is made. shm_mib: size of /dev/shm. user: who logs in unless a call says otherwise."""

    simulation: Simulation = field(default_factory=lambda: Simulation(time_scale=10))
    shm_mib: int = 16384
    user: str = "deploy"


@dataclass(frozen=True)
class Host:
    """One running lab host."""

    name: str
    kind: str
    address: str
    keys: Keys
    settings: Settings

    @property
    def container(self) -> str:
        """Return the name of its container, for `docker` commands."""
        return f"{PREFIX}-{CHECKOUT}-{self.name}"

    def login(self, user: str | None = None) -> Login:
        """Return how to log in as `user` (default: the one of the settings)."""
        login_as = user or self.settings.user
        return Login(self.address, 22, login_as, self.keys.client_key, self.keys.known_hosts)

    def ssh(self, *command: str, user: str | None = None, timeout_s: float = 30) -> str:
        """Run a command over SSH and return its stdout. Raises: CommandFailed."""
        return self.login(user).run(*command, timeout_s=timeout_s).stdout

    def exec(self, *command: str, timeout_s: float = 30, stdin: bytes | None = None, check: bool = True) -> str:
        """Run a command as root from outside, without SSH: evidence that no product code had a hand in."""
        interactive = ("--interactive",) if stdin is not None else ()
        return docker("exec", *interactive, self.container, *command, timeout_s=timeout_s, stdin=stdin, check=check)

    def inventory_entry(self) -> Inventory:
        """Return the host's variables for an inventory."""
        entry = self.login().inventory(time_scale=self.settings.simulation.time_scale)
        if self.kind == "supervisord":
            entry |= {
                "ops_supervisor_conf": "/etc/supervisor/supervisord.conf",
                "ops_supervisorctl": "/usr/bin/supervisorctl",
            }
        return entry

    def boot_id(self) -> str:
        """Return the kernel's boot id as a command on the host sees it."""
        return self.exec("cat", "/proc/sys/kernel/random/boot_id").strip()

    def started_at(self) -> str:
        """Return when the host was last switched on, as Docker tells it: changes with every boot of any kind."""
        return docker("inspect", "--format", "{{.State.StartedAt}}", self.container).strip()

    def reboot(self) -> float:
        """Reboot in an orderly way behind everyone's back; return the seconds until SSH answers again.

        With systemd by `sudo reboot` over SSH. A container without systemd has no reboot but the restart from outside.
        """
        began, before = time.monotonic(), self.started_at()
        if self.kind == "supervisord":
            docker("restart", "--time", "30", self.container)
        else:
            # The connection dies under the command: its status says nothing, the new start says it all.
            self.login().run("sudo", "systemctl", "reboot", check=False)
            while self.started_at() == before:
                if time.monotonic() - began > LOGIN_S:
                    raise CommandFailed(f"{self.name}: no reboot within {LOGIN_S} s of `systemctl reboot`")
                time.sleep(0.1)
        self.login().wait(deadline_s=LOGIN_S)
        return time.monotonic() - began

    def power_off(self) -> None:
        """Cut the power: every process is gone at once, what was in tmpfs is lost."""
        docker("kill", "--signal", "KILL", self.container)

    def power_on(self) -> float:
        """Switch on after `power_off` and return the seconds until SSH answers."""
        began = time.monotonic()
        docker("start", self.container)
        self.login().wait(deadline_s=LOGIN_S)
        return time.monotonic() - began

    def power_cut(self) -> float:
        """Cut the power and switch on again; return the seconds until SSH answers."""
        began = time.monotonic()
        self.power_off()
        self.power_on()
        return time.monotonic() - began

    def unplug_network(self) -> None:
        """Take the host off the network; its processes go on."""
        docker("network", "disconnect", NETWORK, self.container)

    def plug_network(self) -> None:
        """Put the host back on the network, at its old address."""
        docker("network", "connect", "--ip", self.address, NETWORK, self.container)

    def change_host_key(self) -> None:
        """Give the host a new key, as a re-installation does; known_hosts keeps the old one."""
        self.exec("rm", "/etc/ssh/lab/host_key")
        self.exec("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/etc/ssh/lab/host_key")
        # A running sshd keeps the old key in memory, and takes a moment to start again.
        self.exec("pkill", "-HUP", "-o", "-x", "sshd")
        deadline = time.monotonic() + LOGIN_S
        while "IDENTIFICATION HAS CHANGED" not in self.login().run("true", check=False).stderr:
            if time.monotonic() > deadline:
                raise CommandFailed(f"{self.name}: still known by its old key {LOGIN_S} s after the change")
            time.sleep(0.05)

    def journal(self, lines: int = 40) -> str:
        """Return the last lines of the host's own log, to explain a failed test."""
        if self.kind == "supervisord":
            return self.exec("tail", "-n", str(lines), "/var/log/supervisor/supervisord.log", check=False)
        return self.exec("journalctl", "--no-pager", "--lines", str(lines), check=False)


class Lab:
    """Makes and removes hosts. Needs `machine.prepare()` to have run."""

    def __init__(self) -> None:
        self._network_ready = False

    def host(self, name: str, kind: str | None = None, settings: Settings | None = None) -> Host:
        """Return the host `name`, made and started if it does not exist. The kind may be the first word of the name.

        An existing host is returned as it is, whatever `settings` says. Raises: CommandFailed.
        """
        wanted_kind = kind or name.partition("-")[0]
        if wanted_kind not in KINDS:
            raise ValueError(f"host {name}: kind {wanted_kind!r} is none of {', '.join(KINDS)}")
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", name):
            raise ValueError(f"host name {name!r}: lower case letters, digits and dashes, 41 at most")
        existing = self._existing(name, wanted_kind)
        return existing or self._create(name, wanted_kind, settings or Settings())

    def reset(self, host: Host) -> Host:
        """Give the host back as new: same name, address, keys and settings; everything on it is gone."""
        self._destroy(host.container)
        return self._create(host.name, host.kind, host.settings, address=host.address)

    def remove(self, host: Host) -> None:
        """Remove the host with its disk and keys."""
        self._destroy(host.container)
        shutil.rmtree(LAB_FOLDER / "hosts" / host.name, ignore_errors=True)

    def names(self) -> list[str]:
        """Return the names of this checkout's hosts."""
        return _containers('{{.Label "ops-lab.name"}}')

    def _existing(self, name: str, kind: str) -> Host | None:
        template = '{{.Label "ops-lab.name"}} {{.Label "ops-lab.kind"}} {{.Label "ops-lab.address"}} ' + (
            '{{.Label "ops-lab.time-scale"}}'
        )
        for words in (line.split() for line in _containers(template)):
            if words[:1] == [name] and len(words) == 4:  # other containers of this checkout have no kind
                _, found_kind, address, scale = words
                if found_kind != kind:
                    raise ValueError(f"host {name} exists and is {found_kind}, not {kind}")
                settings = Settings(Simulation(time_scale=float(scale)))
                host = Host(name, kind, address, make_keys(name), settings)
                docker("start", host.container)
                host.login().wait(deadline_s=LOGIN_S)
                return host
        return None

    def _create(self, name: str, kind: str, settings: Settings, address: str | None = None) -> Host:
        image = ensure_image(kind)
        keys = make_keys(name)
        payload = host_payload(keys, settings.simulation)
        self._ensure_network()
        with locked("addresses"):
            host = Host(name, kind, address or _free_address(), keys, settings)
            docker("create", *_create_options(host), image)
        try:
            keys.trust(host.address, 22)
            docker("cp", "-", f"{host.container}:/", stdin=payload)
            docker("start", host.container)
            host.login().wait(deadline_s=LOGIN_S)
        except BaseException as error:
            try:
                error.add_note(f"journal of {name}:\n{host.journal()}")
            finally:
                self._destroy(host.container)
            raise
        return host

    def _destroy(self, container: str) -> None:
        docker("rm", "--force", "--volumes", container)

    def _ensure_network(self) -> None:
        if self._network_ready:
            return
        with locked("network"):
            if not docker("network", "ls", "--quiet", "--filter", f"name=^{NETWORK}$").strip():
                docker("network", "create", "--subnet", str(SUBNET), "--label", PREFIX, NETWORK)
        self._network_ready = True


def remove_all() -> list[str]:
    """Remove every container of this checkout's lab with its keys, and the network when no other checkout uses it.

    The keys of virtual machines and fleets stay: a disk is built for them.
    """
    names = Lab().names()
    if names:
        docker("rm", "--force", "--volumes", *_containers("{{.Names}}"), timeout_s=120)
    if not docker("ps", "--all", "--quiet", "--filter", f"label={PREFIX}").strip():
        docker("network", "rm", NETWORK, check=False)
    for name in names:
        shutil.rmtree(LAB_FOLDER / "hosts" / name, ignore_errors=True)
    return names


def _containers(template: str) -> list[str]:
    listed = docker("ps", "--all", "--filter", f"label={PREFIX}.checkout={CHECKOUT}", "--format", template)
    return [line for line in listed.splitlines() if line.strip()]


def _free_address() -> str:
    # All checkouts share the network, so all their hosts count.
    template = f'{{{{.Label "{PREFIX}.address"}}}}'
    taken = set(docker("ps", "--all", "--filter", f"label={PREFIX}", "--format", template).split())
    # The first addresses are the gateway's and whatever else joins the network.
    for address in list(SUBNET.hosts())[9:]:
        if str(address) not in taken:
            return str(address)
    raise CommandFailed(f"no free address in {SUBNET}: remove hosts with `python -m tests.lab down`")


def _create_options(host: Host) -> Sequence[str]:
    labels = {
        PREFIX: "",
        f"{PREFIX}.checkout": CHECKOUT,
        f"{PREFIX}.name": host.name,
        f"{PREFIX}.kind": host.kind,
        f"{PREFIX}.address": host.address,
        f"{PREFIX}.time-scale": str(host.settings.simulation.time_scale),
    }
    options = ["--name", host.container, "--hostname", host.name, "--network", NETWORK, "--ip", host.address]
    options += [f"--label={key}={value}" for key, value in labels.items()]
    options += [f"--shm-size={host.settings.shm_mib}m", "--restart=always", "--cgroupns=private"]
    options += [f"--cap-add={capability}" for capability in CAPABILITIES[host.kind]]
    if host.kind != "supervisord":
        options += [
            "--tmpfs=/run",
            "--tmpfs=/run/lock",
            "--tmpfs=/tmp:exec",
            "--security-opt=apparmor=unconfined",
        ]
    if host.kind == "docker":
        options += [
            "--cap-drop=SYS_RESOURCE",
            "--security-opt=seccomp=unconfined",
            "--volume=/var/lib/docker",
        ]
    return options
