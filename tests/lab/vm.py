"""One virtual machine with a kernel of its own, for what a container cannot prove: limits, control groups, power cuts.

QEMU emulates the processor (slow: half a minute to boot), because KVM exists on too few machines that run tests.
Invariant: the disk built once is never written; each `Vm` has an overlay of its own.
"""

import hashlib
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from .hosts import Settings
from .images import ensure_image
from .login import Inventory, Login
from .machine import LAB_FOLDER, CommandFailed, export_image, locked, sh
from .payload import Keys, host_payload, key_archive, make_keys
from .processes import kill_recorded, record

DISKS = LAB_FOLDER / "vm" / "disks"
RUNNING = LAB_FOLDER / "vm" / "running"
MEMORY_MIB = 1024
DISK_SIZE = "4G"
BOOT_S = 300
NAMESERVER = "10.0.2.3"
"""QEMU's own, in its user-mode network."""


def ensure_disk() -> Path:
    """Build the disk, kernel and initial RAM disk unless they exist, and return their folder."""
    image = ensure_image("vm")
    keys = make_keys("vm")
    identity = (image, keys.host_key.read_text(), keys.client_key.read_text())
    folder = DISKS / hashlib.sha256("\n".join(identity).encode()).hexdigest()[:12]
    with locked("vm-disk"):
        if not folder.exists():
            DISKS.mkdir(parents=True, exist_ok=True)
            building = Path(tempfile.mkdtemp(dir=DISKS))
            try:
                _build_disk(image, keys, building)
                for stale in DISKS.iterdir():
                    if stale != building:
                        shutil.rmtree(stale)
                building.rename(folder)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    return folder


def _build_disk(image: str, keys: Keys, folder: Path) -> None:
    root = folder / "root"
    root.mkdir()
    export_image(image, root)
    (root / "etc/hostname").write_text("vm\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.1.1 vm\n")
    (root / "etc/resolv.conf").write_text(f"nameserver {NAMESERVER}\n")
    (root / "etc/machine-id").write_text("")
    sh(("tar", "-x", "-C", root), stdin=key_archive(keys))
    shutil.copy(next(root.glob("boot/vmlinuz-*")), folder / "vmlinuz")
    shutil.copy(next(root.glob("boot/initrd.img-*")), folder / "initrd")
    sh(("mke2fs", "-q", "-t", "ext4", "-d", root, folder / "disk.raw", DISK_SIZE), timeout_s=180)
    shutil.rmtree(root)


class Vm:
    """A virtual machine on a disk of its own. Use as a context manager; it is gone with its disk afterwards."""

    def __init__(self, name: str = "vm", settings: Settings | None = None) -> None:
        """Prepare a machine called `name`, one of a kind in this checkout; nothing runs yet."""
        self.name = name
        self.settings = settings or Settings()
        self.folder = RUNNING / name
        self._emulator: subprocess.Popen[bytes] | None = None
        self._port = _free_port()
        shared = make_keys("vm")
        self._keys = Keys(shared.host_key, shared.client_key, self.folder / "known_hosts")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def login(self, user: str | None = None) -> Login:
        """Return how to log in as `user` (default: the one of the settings)."""
        login_as = user or self.settings.user
        return Login("127.0.0.1", self._port, login_as, self._keys.client_key, self._keys.known_hosts)

    def ssh(self, *command: str, user: str | None = None, timeout_s: float = 60) -> str:
        """Run a command over SSH and return its stdout. Raises: CommandFailed."""
        return self.login(user).run(*command, timeout_s=timeout_s).stdout

    def inventory_entry(self) -> Inventory:
        """Return the machine's variables for an inventory."""
        return self.login().inventory(time_scale=self.settings.simulation.time_scale)

    def boot_id(self) -> str:
        """Return the kernel's boot id."""
        return self.ssh("cat", "/proc/sys/kernel/random/boot_id").strip()

    def start(self) -> float:
        """Make the disk, boot, and put the engine in; return the seconds until SSH answered."""
        self.remove()
        base = ensure_disk()
        self.folder.mkdir(parents=True)
        backing = ("-b", base / "disk.raw", "-F", "raw")
        sh(("qemu-img", "create", "-q", "-f", "qcow2", *backing, self._disk))
        self._keys.trust("127.0.0.1", self._port)
        boot_s = self.power_on()
        payload = host_payload(self._keys, self.settings.simulation)
        self.login().run("sudo", "tar", "-x", "-C", "/", "--no-same-owner", stdin=payload, timeout_s=120)
        return boot_s

    def reboot(self) -> float:
        """Reboot by `sudo systemctl reboot` over SSH; return the seconds until SSH answers from the new boot."""
        began, before = time.monotonic(), self.boot_id()
        # The connection may die under the command: its status says nothing, the new boot id says it all.
        self.login().run("sudo", "systemctl", "reboot", check=False)
        while True:
            left_s = BOOT_S - (time.monotonic() - began)
            self._wait(left_s)
            if self.boot_id() != before:
                return time.monotonic() - began
            time.sleep(0.5)

    def power_off(self) -> None:
        """Cut the power: what the guest had not yet written to its disk is lost."""
        kill_recorded(self._pid_file)
        if self._emulator is not None:
            self._emulator.wait()

    def power_on(self) -> float:
        """Switch on and return the seconds until SSH answers. Raises: CommandFailed with the end of the console."""
        base = ensure_disk()
        argv = _emulator_argv(base, self._disk, self.folder / "console.log", self._port)
        with (self.folder / "qemu.log").open("ab") as log:
            self._emulator = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        record(self._pid_file, self._emulator.pid)
        return self._wait(BOOT_S)

    def power_cut(self) -> float:
        """Cut the power and switch on again; return the seconds until SSH answers."""
        began = time.monotonic()
        self.power_off()
        self.power_on()
        return time.monotonic() - began

    def remove(self) -> None:
        """Switch off and delete the disk."""
        self.power_off()
        shutil.rmtree(self.folder, ignore_errors=True)

    def journal(self, lines: int = 40) -> str:
        """Return the last lines of the machine's own log, or of its console when SSH does not answer."""
        try:
            return self.ssh("sudo", "journalctl", "--no-pager", "--lines", str(lines))
        except CommandFailed:
            return self._console()

    @property
    def _disk(self) -> Path:
        return self.folder / "disk.qcow2"

    @property
    def _pid_file(self) -> Path:
        return self.folder / "pid"

    def _wait(self, deadline_s: float) -> float:
        try:
            return self.login().wait(deadline_s=deadline_s, poll_s=0.3)
        except CommandFailed as error:
            raise CommandFailed(f"virtual machine {self.name}: {error}\n{self._console()}") from error

    def _console(self) -> str:
        logs = (self.folder / "qemu.log", self.folder / "console.log")
        return "\n".join(log.read_text(errors="replace")[-2000:] for log in logs if log.exists())


def stop_all() -> int:
    """Stop every virtual machine of this checkout and delete its disk; return how many were running."""
    stopped = sum(kill_recorded(pid_file) for pid_file in RUNNING.glob("*/pid"))
    shutil.rmtree(RUNNING, ignore_errors=True)
    return stopped


def _emulator_argv(base: Path, disk: Path, console: Path, port: int) -> list[str]:
    # Forced emulation: a /dev/kvm that exists may still hang the guest. writethrough: a power cut must only lose
    # what the guest never asked to be on disk. la57=off: five-level page tables slow emulation down.
    return [
        "qemu-system-x86_64",
        *("-M", "q35", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,la57=off"),
        *(
            "-m",
            str(MEMORY_MIB),
            "-smp",
            "1",
            "-display",
            "none",
            "-monitor",
            "none",
            "-serial",
            f"file:{console}",
        ),
        *("-kernel", str(base / "vmlinuz"), "-initrd", str(base / "initrd")),
        *("-append", "root=/dev/vda rw console=ttyS0 quiet mitigations=off"),
        *("-drive", f"file={disk},if=virtio,cache=writethrough"),
        *("-netdev", f"user,id=n,hostfwd=tcp:127.0.0.1:{port}-:22"),
        *("-device", "virtio-net-pci,netdev=n,romfile=", "-device", "virtio-rng-pci"),
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
