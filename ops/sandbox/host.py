"""`Sandbox`: a host on this machine that is reached over SSH like any other, with a simulated engine.

Invariant: everything that a sandbox starts carries its marker, and everything it writes is in its folder (plus the
directory of a socket whose path would be too long), so that `down` leaves nothing behind.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from ops.errors import HostError, Refused
from ops.sandbox import disk, processes
from ops.sandbox.address import Claim, claim, hold
from ops.sandbox.daemons import start_sshd, start_supervisord, wait_ready
from ops.sandbox.layout import (
    DEFAULT_NAME,
    Daemon,
    Layout,
    Record,
    Settings,
    changed_settings,
    folder_of,
    read_record,
    write_file,
    write_record,
)
from ops.sandbox.provision import forget_gpu_holders, gpu_entries, lay_down

if TYPE_CHECKING:
    from ops.sandbox.engine.gpu import Holder


@dataclass(frozen=True)
class State:
    """What is true of a sandbox now. `processes` counts all of them, `cut_s` is the rest of an SSH cut (wall s)."""

    name: str
    folder: Path
    address: str
    ssh_port: int
    sshd: bool
    supervisord: bool
    processes: int
    settings: Settings
    faults: list[dict[str, Any]]
    cut_s: float

    @property
    def up(self) -> bool:
        return self.sshd and self.supervisord


class Sandbox:
    """A sandbox that exists (its folder has a `sandbox.json`); made by `Sandbox.up`, found again by `Sandbox.open`."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._hold: socket.socket | None = None

    @classmethod
    def up(
        cls,
        name: str = DEFAULT_NAME,
        *,
        project: Path | None = None,
        time_scale: float | None = None,
        noise: Literal["off", "story"] | None = None,
        seed: int | None = None,
        load_s: float | None = None,
        root_size_mib: int | None = None,
        gpus: dict[str, Any] | None = None,
        knobs: dict[str, Any] | None = None,
    ) -> Self:
        """Bring a sandbox up, or mend one that is partly down; what is left out stays as it was (else the default).

        time_scale: virtual seconds per wall second. load_s: virtual seconds of a whole model load. root_size_mib:
        the root folder becomes a file system of that size (needs the right to mount; 0: no limit).
        gpus, knobs: see `Settings`. New settings count from the next start of the engine.

        Raises: Refused (address taken, cannot mount, packages missing), ConfigError (name, project), HostError.
        """
        wishes = {
            key: value
            for key, value in {
                "time_scale": time_scale,
                "noise": noise,
                "seed": seed,
                "load_s": load_s,
                "root_size_mib": root_size_mib,
                "gpus": gpus,
                "knobs": knobs,
            }.items()
            if value is not None
        }
        sandbox = cls(Layout(folder_of(name, project)))
        changed_settings(Settings(), wishes)
        with _locked(sandbox.layout.folder, make=True):
            before = read_record(sandbox.layout)
            settings = changed_settings(before.settings if before else Settings(), wishes)
            try:
                sandbox._bring_up(before or Record(name=name, address=""), settings)
            except Refused:
                # Nothing was started yet: a sandbox that cannot be must not leave a half one behind.
                if before is None:
                    sandbox._delete()
                raise
        return sandbox

    @classmethod
    def open(cls, name: str = DEFAULT_NAME, *, project: Path | None = None) -> Self:
        """Find a sandbox that exists, up or not. Raises: Refused when there is none of that name."""
        sandbox = cls(Layout(folder_of(name, project)))
        if not sandbox.layout.record.exists():
            raise Refused(f"there is no sandbox '{name}'", hint=f"bring it up: ops sandbox up {name}")
        return sandbox

    @property
    def record(self) -> Record:
        record = read_record(self.layout)
        if record is None:
            raise Refused(f"the sandbox in {self.layout.folder} is gone", hint="bring it up again: ops sandbox up")
        return record

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def inventory(self) -> Path:
        return self.layout.inventory

    @property
    def address(self) -> str:
        return self.record.address

    @property
    def ssh_port(self) -> int:
        return self.record.ssh_port

    @property
    def root(self) -> Path:
        return self.layout.root

    def state(self) -> State:
        from ops.sandbox.faults import list_active

        record = self.record
        return State(
            name=record.name,
            folder=self.layout.folder,
            address=record.address,
            ssh_port=record.ssh_port,
            sshd=processes.alive(record.sshd),
            supervisord=processes.alive(record.supervisord),
            processes=len(self.processes()),
            settings=record.settings,
            faults=list_active(self.layout),
            cut_s=self.cut_left_s(),
        )

    def processes(self) -> list[processes.Process]:
        """Every live process that belongs to this sandbox, from the process table, oldest first."""
        return processes.members(self.layout.folder, self._gpu_daemons())

    def gpu_holders(self) -> "list[Holder]":
        """Who holds simulated GPU memory, as `nvidia-smi` shows: one a process and GPU (of the dead 1 s longer)."""
        from ops.sandbox.engine.gpu import read_gpus

        return [holder for gpu in read_gpus(self.layout.simulation) for holder in gpu.holders]

    def fault(self, name: str, on: str = "next", **how: Any) -> None:
        """Set a fault; `ops.sandbox.faults.set_fault` says which there are and what `how` may be."""
        from ops.sandbox.faults import set_fault

        set_fault(self, name, on, **how)

    def clear_faults(self) -> None:
        from ops.sandbox.faults import clear_all

        clear_all(self)

    def kill_connections(self) -> None:
        """Drop every SSH connection with the commands on it, and keep accepting new ones."""
        self.cut_ssh(0.0)

    def cut_ssh(self, for_s: float) -> None:
        """Drop every SSH connection and refuse new ones for `for_s` wall seconds (0: none).

        Returns when it has struck; with 0, when SSH listens again.
        """
        record = self.record
        if record.sshd is None or not processes.alive(record.sshd):
            raise HostError("the SSH server is not running, nothing to cut", hint="ops sandbox up", host=record.name)
        write_file(self.layout.cut_request, json.dumps({"for_s": for_s}))
        processes.kill(record.sshd, signal.SIGUSR1)
        deadline = time.monotonic() + 5.0
        while self.layout.cut_request.exists() or (not for_s and self.layout.cut.exists()):
            if time.monotonic() > deadline:
                raise HostError("the SSH server did not cut its connections within 5 s", host=record.name)
            time.sleep(0.002)

    def cut_left_s(self) -> float:
        """Wall seconds until SSH answers again after a cut; 0 when there is none."""
        return max(0.0, float(self._cut().get("until", 0.0)) - time.time())

    def _forget_cut(self) -> None:
        for file in (self.layout.cut, self.layout.cut_request):
            file.unlink(missing_ok=True)

    def _cut(self) -> dict[str, float]:
        try:
            return dict(json.loads(self.layout.cut.read_text()))
        except FileNotFoundError:
            return {}

    def power_cut(self) -> None:
        """SIGKILL every process at once. The address stays this object's until `power_on`, `reboot` or `down`."""
        if self._hold is None:
            self._hold = hold(self.address)
        processes.kill_members(self.layout.folder, self._gpu_daemons())
        forget_gpu_holders(self.layout)
        self._forget_cut()

    def power_on(self) -> None:
        """Start SSH server and supervisord as a boot does, on the same address and disk."""
        with _locked(self.layout.folder):
            self._bring_up(self.record, self.record.settings)
        self._release_hold()

    def reboot(self, down_s: float = 0.5) -> None:
        """Power cut, `down_s` wall seconds of nothing, boot."""
        self.power_cut()
        time.sleep(down_s)
        self.power_on()

    def down(self) -> int:
        """Stop everything that belongs to the sandbox and delete its folder; returns how many processes were ended."""
        with _locked(self.layout.folder):
            ended = processes.kill_members(self.layout.folder, self._gpu_daemons())
            self._delete()
        self._release_hold()
        return ended

    def _delete(self) -> None:
        disk.unmount(self.layout)
        shutil.rmtree(self.layout.folder)
        if self.layout.short_run_dir.is_dir():
            shutil.rmtree(self.layout.short_run_dir)
        with contextlib.suppress(OSError):
            self.layout.folder.parent.rmdir()

    def _release_hold(self) -> None:
        if self._hold is not None:
            self._hold.close()
            self._hold = None

    def _gpu_daemons(self) -> list[Daemon]:
        return [Daemon(pid=pid, starttime=starttime) for pid, starttime in gpu_entries(self.layout)]

    def _running(self, record: Record) -> dict[str, Daemon | None]:
        """The daemons that run, also those whose `up` was killed before it could write them down."""
        found = {"sshd": record.sshd, "supervisord": record.supervisord}
        if all(processes.alive(daemon) for daemon in found.values()):
            return found
        words = {"sshd": f"ops.sandbox.sshd {self.layout.folder}", "supervisord": f"-c {self.layout.supervisord_conf}"}
        for process in self.processes():
            for name, word in words.items():
                if not processes.alive(found[name]) and f"{word} " in f"{process.title} ":
                    found[name] = Daemon(pid=process.pid, starttime=process.starttime)
        return found

    def _bring_up(self, before: Record, settings: Settings) -> None:
        claimed: Claim | None = None
        before = before.model_copy(update=self._running(before))
        record = before.model_copy(update={"settings": settings})
        if not processes.alive(before.sshd):
            claimed = claim(before.name, before.address or None, held=self._hold is not None)
            record = record.model_copy(update={"address": claimed.address})
        try:
            disk.mount(self.layout, before.settings.root_size_mib, settings.root_size_mib)
            write_record(self.layout, record)
            lay_down(self.layout, record)
            if claimed is not None:
                self._forget_cut()
                record = record.model_copy(update={"sshd": start_sshd(self.layout, claimed)})
                write_record(self.layout, record)
        finally:
            if claimed is not None:
                claimed.close()
        if not processes.alive(before.supervisord):
            record = record.model_copy(update={"supervisord": start_supervisord(self.layout)})
            write_record(self.layout, record)
        if record != before and self.cut_left_s() == 0:
            wait_ready(self.layout, record)


def all_sandboxes(project: Path | None = None) -> list[Sandbox]:
    """Every sandbox of the project that has a record, by name."""
    parent = folder_of(DEFAULT_NAME, project).parent
    records = sorted(parent.glob("*/sandbox.json")) if parent.is_dir() else []
    return [Sandbox(Layout(record.parent)) for record in records]


@contextlib.contextmanager
def _locked(folder: Path, *, make: bool = False) -> Iterator[None]:
    """One `up`, `down` or boot at a time, by a lock on the folder itself (a lock file would outlive the folder)."""
    while True:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            if make:
                continue
            raise Refused(f"the sandbox in {folder} is gone", hint="bring it up: ops sandbox up") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            # Whoever held the lock before may have deleted the folder.
            if _same(folder, handle):
                yield
                return
        finally:
            os.close(handle)


def _same(folder: Path, handle: int) -> bool:
    try:
        return os.path.samestat(folder.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
