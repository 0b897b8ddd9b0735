"""A release of a shipped profile, rendered and started for real, and the gate's view of it.

The engine is the simulated one in an environment of its own; launch.sh, process tree, environment, sockets, log and
HTTP are real. What is missing is SSH and a supervisor: the tests under tests/sandbox have those.
"""

import os
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from ops.config.profiles import load_nccl, load_profile, load_stack
from ops.gates.live import LiveServer
from ops.hosts.clock import HostClock
from ops.model.gate import Stored
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.release import Release
from ops.remote import engine_client, facts, machine, models, processes
from ops.render.release import render
from ops.sandbox.engine.faultfile import clear_faults, set_fault
from ops.sandbox.engine.install import Simulation, install_engine, write_simulation
from ops.sandbox.models import model_files

PROJECT = Path(__file__).parents[2]
GPUS = {"devices": [{"uuid": f"GPU-{i}", "driver": "575.57.08"} for i in range(8)]}


@dataclass
class Rig:
    """A folder with an engine, models and releases; one server at a time."""

    folder: Path
    scale: float = 10.0
    said: list[str] = field(default_factory=list)

    @property
    def simulation(self) -> Path:
        return self.folder / "venv" / "simulation"

    def lay_down(self, **settings: Any) -> "Rig":
        prefix = self.folder / "venv"
        venv.EnvBuilder(symlinks=True, with_pip=False).create(prefix)
        packages = prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        install_engine(packages)
        (packages / "needs.pth").write_text(f"{Path(requests.__file__).parents[1]}\n")
        self.simulate(**settings)
        return self

    def simulate(self, **settings: Any) -> None:
        """Say how the engine behaves from now on; faults are cleared, models are put back as they were."""
        write_simulation(self.simulation, Simulation(**{"time_scale": self.scale, "load_s": 0.2, **settings}))
        clear_faults(self.simulation)
        for role, files in model_files().items():
            (self.folder / role).mkdir(exist_ok=True)
            for name, content in files.items():
                (self.folder / role / name).write_bytes(content)

    def fault(self, fault: str | Mapping[str, Any]) -> None:
        """Let the next start have a fault, by name or as knobs without a name."""
        set_fault(self.simulation, fault)

    def host(self) -> HostSpec:
        return HostSpec(
            name="rig",
            address="127.0.0.1",
            root=str(self.folder / "root"),
            engine_python=str(self.folder / "venv" / "bin" / "python"),
            paths={
                "/shared/models/Kimi-K2.5": str(self.folder / "target"),
                "/data/models/kimi-k2.5-eagle3": str(self.folder / "draft"),
            },
            bind="127.0.0.1",
            supervisor="supervisord",
            time_scale=self.scale,
        )

    def rendered(self, profile: Profile) -> Release:
        return render(profile, load_stack(PROJECT, profile.stack), load_nccl(PROJECT, profile.nccl), self.host())

    def profile(self, name: str, port: int, **changes: Any) -> Profile:
        return load_profile(
            PROJECT, name, {**changes, "engine": {"port": port, **changes.get("engine", {})}}, environ={}
        )

    @contextmanager
    def serving(
        self, profile: Profile, stored: Stored | None = None, tolerated: tuple[int, ...] = ()
    ) -> Iterator["Served"]:
        """Start the profile's release by its launch.sh and yield the gate's view of it; kill what is left after."""
        release = self.rendered(profile)
        place = Path(self.host().instance_dir) / "releases" / release.id
        place.mkdir(parents=True, exist_ok=True)
        for file in release.files:
            (place / file.name).write_bytes(file.content)
            (place / file.name).chmod(file.mode)
        process = subprocess.Popen(
            [place / "launch.sh"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        )
        served = Served(self, profile, release, process, stored or Stored(), tolerated)
        try:
            served.wait()
            yield served
        finally:
            for entry in processes.ours(self.host().instance_dir):
                with suppress(ProcessLookupError):
                    os.kill(entry["pid"], signal.SIGKILL)
            process.wait(10)
            assert process.stdout is not None
            process.stdout.close()


@dataclass
class Served:
    rig: Rig
    profile: Profile
    release: Release
    process: "subprocess.Popen[bytes]"
    stored: Stored
    tolerated: tuple[int, ...] = ()

    def wait(self) -> None:
        deadline = time.monotonic() + 20
        while self.server().http("GET", "/health", timeout_s=60).status not in (200, *self.tolerated):
            assert self.process.poll() is None, self.log(200)
            assert time.monotonic() < deadline, self.log(200)
            time.sleep(0.05)

    def log(self, lines: int) -> list[str]:
        return list(facts.log(self.rig.host().instance_dir, self.release.id, lines))

    def look(self) -> Mapping[str, Any]:
        running = self.process.poll() is None
        expected = self.release.manifest["pins"]
        instance_dir = self.rig.host().instance_dir
        found = {
            role: models.describe(instance_dir, expected[role]["path"], weights=role == "draft")
            for role in ("target", "draft")
            if expected[role]
        }
        return {
            "engine": {
                "state": "running" if running else "failed",
                "pid": self.process.pid if running else None,
                "detail": "" if running else f"exit {self.process.returncode}",
            },
            "processes": processes.ours(self.rig.host().instance_dir),
            "listeners": processes.listeners({self.profile.engine.port}),
            "nccl_files": machine.nccl_files(str(self.rig.folder / "home")),
            "models": found,
            "gpus": GPUS,
            "journal": [],
        }

    def server(self) -> LiveServer:
        return LiveServer(
            profile=self.profile,
            manifest=self.release.manifest,
            clock=HostClock(self.rig.scale),
            bound=("127.0.0.1", self.profile.engine.port),
            call=call,
            look=self.look,
            read_log=self.log,
            say=self.rig.said.append,
            stored=self.stored,
        )


def call(
    verb: str, args: Mapping[str, Any], timeout_s: float, on_event: Callable[[Mapping[str, Any]], None] | None = None
) -> Any:
    """Run a verb in this process, as the agent does on the host."""
    function = getattr(engine_client, verb.removeprefix("engine_client."))
    return function(on_event or (lambda event: None), **args)
