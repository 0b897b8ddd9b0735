"""A host with a real engine: the sandbox's SSH server and supervisord, and the Python of a real SGLang.

The sandbox's own simulated engine and its stub of nvidia-smi stay unused: neither is in the inventory written here.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ops.sandbox.host import Sandbox
from ops.sandbox.provision import host_variables

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
MODELS = HERE / "models"
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass
class RealHost:
    """One sandbox host whose releases start a real engine, a copy of the project that deploys to it, and the models.

    Attributes:
        project: folder with a copy of `envs/`; a test may add profiles there.
        models: folder with copies of the tiny models; a test may break them.
        environment: variables of the `ops` commands beside the shell's own.
        echo: show the progress of `ops` as it comes; else it is kept in `log` only.
        commands: every command that was given, in order, with its seconds and exit code.
    """

    box: Sandbox
    project: Path
    models: Path
    engine_python: Path
    environment: dict[str, str] = field(default_factory=dict)
    echo: bool = False
    commands: list[dict[str, Any]] = field(default_factory=list)

    @property
    def instance(self) -> Path:
        return self.box.root / "default"

    @property
    def log(self) -> Path:
        return self.project / "ops.log"

    @property
    def inventory(self) -> Path:
        return self.project / "hosts.yml"

    def ops(self, *words: str, timeout_s: float = 1500.0, environment: Mapping[str, str] | None = None) -> Any:
        """Run `ops WORDS --json` and return its document; it must agree with the exit status."""
        variables = {
            **os.environ,
            **self.environment,
            **(environment or {}),
            "OPS_PROJECT": str(self.project),
            "OPS_INVENTORY": str(self.inventory),
            "OPS_HOST": self.box.name,
        }
        begun = time.monotonic()
        with self.log.open("ab") as log:
            done = subprocess.run(
                [sys.executable, "-m", "ops", *words, "--json"],
                env=variables,
                cwd=self.project,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None if self.echo else log,
                timeout=timeout_s,
                check=False,
            )
        seconds = round(time.monotonic() - begun, 1)
        given = " ".join(("ops", *words))
        self.commands.append(
            {"host": self.box.name, "command": given, "exit_code": done.returncode, "seconds": seconds}
        )
        try:
            document: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise AssertionError(f"ops {' '.join(words)} printed no document: {self.tail()}") from None
        if document["exit_code"] != done.returncode:
            raise AssertionError(f"exit status {done.returncode}, document {document['exit_code']}: {self.tail()}")
        return document

    def on_host(self, *words: str, **how: Any) -> Any:
        """Run `ops WORDS` and return its document's one host."""
        (host,) = self.ops(*words, **how)["hosts"]
        return host

    def serve(self, profile: str) -> Any:
        """Make `profile` serve (nothing is done when it does), and return the deploy's host."""
        host = self.on_host("deploy", "--profile", profile)
        assert host["outcome"] in ("deployed", "unchanged"), self.explain(host)
        return host

    def explain(self, host: Mapping[str, Any]) -> str:
        return f"{host['outcome']}: {host['message']}\nhint: {host['hint']}\n{self.tail()}"

    def tail(self, lines: int = 40) -> str:
        """The last progress of `ops`, then of the engine."""
        parts = []
        engine_logs = sorted((self.instance / "logs").glob("*.log"), key=lambda file: file.stat().st_mtime)
        for file in (self.log, *engine_logs[-1:]):
            if file.exists():
                text = file.read_text(errors="replace").splitlines()[-lines:]
                parts.append("\n".join([f"--- {file.name}", *text]))
        return "\n".join(parts)

    def profile(self, name: str, content: Mapping[str, Any]) -> str:
        """Add a profile to the project's copy of `envs/`."""
        (self.project / "envs" / "profiles" / f"{name}.yaml").write_text(yaml.safe_dump(dict(content)))
        return name

    def current_folder(self) -> Path:
        return (self.instance / "current").resolve()

    def engine_log(self) -> Path:
        return self.instance / "logs" / f"{self.current_folder().name}.log"

    def engine_processes(self) -> dict[int, str]:
        """{pid: title} of every live process of the instance, by the marker in its environment."""
        marker = f"OPS_INSTANCE_DIR={self.instance.resolve()}".encode()
        found = {}
        for pid in pids():
            variables = environ(pid)
            if variables is not None and marker in variables:
                found[pid] = title(pid)
        return found

    def schedulers(self) -> list[int]:
        """Pids of the ranks."""
        return [pid for pid, name in self.engine_processes().items() if name.startswith("sglang::scheduler")]

    def launcher(self) -> int:
        """Pid of the server process."""
        (pid,) = [pid for pid, name in self.engine_processes().items() if "sglang.launch_server" in name]
        return pid

    @contextlib.contextmanager
    def other_layer_ids(self, ids: Sequence[int]) -> Iterator[None]:
        """Somebody rewires the draft on the host."""
        file = self.models / "tiny-eagle3" / "config.json"
        before = file.read_bytes()
        config = json.loads(before)
        config["eagle_config"][LAYER_IDS] = list(ids)
        file.write_text(json.dumps(config, indent=1))
        try:
            yield
        finally:
            file.write_bytes(before)


def up(
    folder: Path,
    name: str,
    engine_python: Path,
    *,
    search_path: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    echo: bool = False,
    time_scale: float = 1.0,
    **simulation: Any,
) -> RealHost:
    """Bring a host up in `folder`, or find it again there.

    Args: search_path: folders of nvidia-smi, compilers, … time_scale, simulation: for a rehearsal with the sandbox's
        own engine; see `Sandbox.up`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    models = folder / "models"
    if not models.exists():
        shutil.copytree(MODELS, models)
    shutil.copytree(REPOSITORY / "envs", folder / "envs", dirs_exist_ok=True)
    box = Sandbox.up(name, project=folder, time_scale=time_scale, **simulation)
    variables = {
        **host_variables(box.layout, box.record),
        "ops_engine_python": str(engine_python),
        "ops_paths": {"/lab/models": str(models)},
        "ops_search_path": list(search_path),
        "ops_time_scale": time_scale,
    }
    host = RealHost(box, folder, models, engine_python, dict(environment or {}), echo)
    host.inventory.write_text(yaml.safe_dump({"all": {"hosts": {name: variables}}}, sort_keys=False))
    return host


def pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def environ(pid: int) -> list[bytes] | None:
    """The process's environment as KEY=VALUE; None when it is gone or closed."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for(what: str, seen: Callable[[], Any], timeout_s: float, every_s: float = 0.2) -> Any:
    """Wait until `seen()` is true and return it."""
    deadline = time.monotonic() + timeout_s
    while not (found := seen()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:g} s")
        time.sleep(every_s)
    return found


def check(host: Mapping[str, Any], name: str) -> Any:
    """One check of the gate in a host's document."""
    assert host["gate"], f"no gate was asked: {host['message']}"
    return next(found for found in host["gate"]["checks"] if found["name"] == name)


def verdicts(host: Mapping[str, Any]) -> dict[str, str]:
    """{check: outcome} of a host's document."""
    return {found["name"]: found["outcome"] for found in (host["gate"] or {"checks": []})["checks"]}
