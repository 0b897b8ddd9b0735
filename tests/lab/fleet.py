"""Many light hosts: an SSH server each, in namespaces of its own, with its own root, processes, name and address.

A host costs a few MB and a few hundredths of a second, so fifty are affordable; they cannot reboot. Invariant: one
fleet at a time on a machine (they share a bridge), and a new one first removes what a killed run left behind.
"""

import hashlib
import ipaddress
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .hosts import Settings
from .images import ensure_image
from .login import Inventory, Login
from .machine import LAB_FOLDER, CommandFailed, export_image, locked, sh
from .payload import Keys, host_payload, make_keys
from .processes import is_alive, kill_recorded, record

ROOTS = LAB_FOLDER / "fleet" / "roots"
RUNNING = LAB_FOLDER / "fleet" / "running"
BRIDGE = "ops-lab-fleet"
SUBNET = ipaddress.ip_network("10.213.78.0/24")
MOST = 200
START_S = 20

INIT = """
set -eu
hostname "$1"
mount -t overlay overlay -o "lowerdir=$2,upperdir=$3/upper,workdir=$3/work" "$3/root"
mount -t proc proc "$3/root/proc"
mount -t sysfs -o ro sysfs "$3/root/sys"
mount --rbind /dev "$3/root/dev"
mount -t tmpfs tmpfs "$3/root/dev/shm"
mkdir -p "$3/root/run/sshd"
root=$3/root
shift 3
exec chroot "$root" "$@"
"""
INITS = {
    "sshd": ("/usr/sbin/sshd", "-D", "-e"),
    "supervisord": (
        "/usr/bin/supervisord",
        "--nodaemon",
        "--configuration",
        "/etc/supervisor/supervisord.conf",
    ),
}


@dataclass(frozen=True)
class FleetHost:
    """One light host."""

    name: str
    address: str
    keys: Keys
    settings: Settings

    def login(self, user: str | None = None) -> Login:
        """Return how to log in as `user` (default: the one of the settings)."""
        return Login(self.address, 22, user or self.settings.user, self.keys.client_key, self.keys.known_hosts)

    def ssh(self, *command: str, user: str | None = None, timeout_s: float = 30) -> str:
        """Run a command over SSH and return its stdout. Raises: CommandFailed."""
        return self.login(user).run(*command, timeout_s=timeout_s).stdout

    def inventory_entry(self) -> Inventory:
        """Return the host's variables for an inventory."""
        return self.login().inventory(time_scale=self.settings.simulation.time_scale) | {
            "ops_supervisor_conf": "/etc/supervisor/supervisord.conf",
            "ops_supervisorctl": "/usr/bin/supervisorctl",
        }


def ensure_root() -> Path:
    """Unpack the root that all light hosts share (the one of the host without systemd) and return its folder."""
    image = ensure_image("supervisord")
    folder = ROOTS / hashlib.sha256(image.encode()).hexdigest()[:12]
    with locked("fleet-root"):
        if not folder.exists():
            ROOTS.mkdir(parents=True, exist_ok=True)
            building = Path(tempfile.mkdtemp(dir=ROOTS))
            try:
                export_image(image, building)
                building.chmod(0o755)
                shutil.copy("/etc/resolv.conf", building / "etc/resolv.conf")
                for stale in ROOTS.iterdir():
                    if stale != building:
                        shutil.rmtree(stale)
                building.rename(folder)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    return folder


@contextmanager
def fleet(count: int, settings: Settings | None = None, *, init: str = "sshd") -> Iterator[tuple[FleetHost, ...]]:
    """Start `count` light hosts and stop them at the end. Waits while another fleet runs on this machine.

    Args: init: their first process, "sshd" alone or "supervisord" with sshd as a program (20 MB and 0.3 s each).
    Raises: CommandFailed when one does not answer.
    """
    if not 1 <= count <= MOST:
        raise ValueError(f"a fleet has 1 to {MOST} hosts, not {count}")
    root = ensure_root()
    with locked("fleet"):
        stop_all()
        started: list[subprocess.Popen[bytes]] = []
        try:
            yield _start(count, root, settings or Settings(), INITS[init], started)
        finally:
            stop_all()
            for process in started:
                process.wait()


def stop_all() -> int:
    """Stop all light hosts of this machine and remove their network and disks; return how many were running."""
    if not shutil.which("ip"):
        # The lab was never prepared here, so it has no fleet.
        return 0
    stopped = sum(kill_recorded(pid_file) for pid_file in sorted(RUNNING.glob("*/pid")))
    for line in sh(("ip", "netns", "list")).splitlines():
        namespace = line.split()[0]
        if namespace.startswith(f"{BRIDGE}-"):
            # A session that outlived its host would keep the namespace and its link.
            for pid in sh(("ip", "netns", "pids", namespace)).split():
                sh(("kill", "-KILL", pid), check=False)
            sh(("ip", "netns", "del", namespace))
    if Path(f"/sys/class/net/{BRIDGE}").exists():
        sh(("ip", "link", "del", BRIDGE))
    shutil.rmtree(RUNNING, ignore_errors=True)
    return stopped


def _start(
    count: int, root: Path, settings: Settings, init: tuple[str, ...], started: list[subprocess.Popen[bytes]]
) -> tuple[FleetHost, ...]:
    keys = make_keys("fleet")
    common = RUNNING / "common"
    common.mkdir(parents=True)
    payload = host_payload(keys, settings.simulation)
    sh(("tar", "-x", "-C", common, "--no-same-owner"), stdin=payload)
    addresses = [str(address) for address in list(SUBNET.hosts())[9 : 9 + count]]
    names = [f"fleet-{number}" for number in range(1, count + 1)]
    _lay_network(names, addresses)
    hosts = []
    for name, address in zip(names, addresses, strict=True):
        folder = RUNNING / name
        for part in ("upper", "work", "root"):
            (folder / part).mkdir(parents=True)
        (folder / "upper/etc").mkdir()
        (folder / "upper/etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
        own = Keys(keys.host_key, keys.client_key, folder / "known_hosts")
        own.trust(address, 22)
        started.append(_start_host(name, folder, f"{common}:{root}", init))
        hosts.append(FleetHost(name, address, own, settings))
    for host in hosts:
        _wait_for_greeting(host, RUNNING / host.name)
    return tuple(hosts)


def _lay_network(names: list[str], addresses: list[str]) -> None:
    gateway = f"{next(SUBNET.hosts())}/{SUBNET.prefixlen}"
    outside = [
        f"link add {BRIDGE} type bridge",
        f"addr add {gateway} dev {BRIDGE}",
        f"link set {BRIDGE} up",
    ]
    for number, (name, address) in enumerate(zip(names, addresses, strict=True)):
        namespace = f"{BRIDGE}-{name}"
        sh(("ip", "netns", "add", namespace))
        inside = (
            f"link add eth0 type veth peer name opslab{number}\n"
            "link set lo up\n"
            f"addr add {address}/{SUBNET.prefixlen} dev eth0\n"
            "link set eth0 up\n"
            f"link set opslab{number} netns 1\n"
        )
        sh(("ip", "-n", namespace, "-batch", "-"), stdin=inside.encode())
        outside += [f"link set opslab{number} master {BRIDGE}", f"link set opslab{number} up"]
    sh(("ip", "-batch", "-"), stdin="\n".join(outside).encode() + b"\n")


def _start_host(name: str, folder: Path, lower: str, init: tuple[str, ...]) -> subprocess.Popen[bytes]:
    namespaces = ("--mount", "--uts", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc")
    entering = ("ip", "netns", "exec", f"{BRIDGE}-{name}", "unshare", *namespaces)
    # A clean environment: what this machine exports must not reach the host.
    clean = ("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
    with (folder / "console.log").open("wb") as log:
        first = subprocess.Popen(
            (*clean, *entering, "sh", "-c", INIT, "init", name, lower, str(folder), *init),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    record(folder / "pid", first.pid)
    return first


def _wait_for_greeting(host: FleetHost, folder: Path) -> None:
    """Wait until the host's SSH server says its version. A whole login would take ten times as long."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            with socket.create_connection((host.address, 22), timeout=2) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            pass
        alive = is_alive(folder / "pid")
        if not alive or time.monotonic() > deadline:
            console = (folder / "console.log").read_text(errors="replace")[-1500:]
            what = f"does not answer within {START_S} s" if alive else "ended at once"
            raise CommandFailed(f"{host.name} {what}; its output:\n{console}")
        time.sleep(0.02)
