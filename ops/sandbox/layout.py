"""Where everything of a sandbox lies, and what its `sandbox.json` says.

Invariant: every file of a sandbox is under its folder, except the directory of supervisord's socket when the
folder's path is too long for one; that directory is named here and removed by `down`.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ops.errors import ConfigError

DEFAULT_NAME = "sandbox"
SSH_PORT = 2222
SSH_USER = "ops"
ENGINE_PORT = 8000
MARKER = "OPS_SANDBOX"
"""Variable that every process of a sandbox inherits; its value is the sandbox's folder."""

TARGET = "models/Kimi-K2.5"
DRAFT = "models/kimi-k2.5-eagle3"

_SUN_PATH_BYTES = 107
_SUPERVISOR_SUFFIX_BYTES = 9
"""supervisord binds `<socket>.<pid>` first and links it. Source: supervisor 4.3.0 http.py:564."""


class Daemon(BaseModel):
    """A process by pid and start time (clock ticks since boot), so that a reused pid is never taken for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pid: int
    starttime: int


class Settings(BaseModel):
    """How the simulated engine behaves: speed-up, noise, load time, and the size of the root folder's disk.

    gpus and knobs are the engine's own settings: see `Simulation` in `ops/sandbox/engine/install.py`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    time_scale: float = Field(default=10.0, ge=0.1, le=1000)
    noise: Literal["off", "story"] = "story"
    seed: int = Field(default=1, ge=0)
    load_s: float = Field(default=8.0, ge=0, le=7200)
    root_size_mib: int = Field(default=0, ge=0, le=1 << 20)
    gpus: dict[str, Any] = Field(default_factory=dict)
    knobs: dict[str, Any] = Field(default_factory=dict)


class Record(BaseModel):
    """Contents of `sandbox.json`: what a later `ops sandbox` command needs to find this sandbox again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    address: str
    ssh_port: int = SSH_PORT
    engine_port: int = ENGINE_PORT
    settings: Settings = Settings()
    sshd: Daemon | None = None
    supervisord: Daemon | None = None


@dataclass(frozen=True)
class Layout:
    """Paths of one sandbox; `folder` is absolute."""

    folder: Path

    @property
    def record(self) -> Path:
        return self.folder / "sandbox.json"

    @property
    def inventory(self) -> Path:
        return self.folder / "hosts.yml"

    @property
    def host_key(self) -> Path:
        return self.folder / "ssh" / "host_key"

    @property
    def client_key(self) -> Path:
        return self.folder / "ssh" / "client_key"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "ssh" / "known_hosts"

    @property
    def cut_request(self) -> Path:
        """Request to the SSH server to drop every connection; see `ops.sandbox.sshd`."""
        return self.folder / "ssh" / "cut-request.json"

    @property
    def cut(self) -> Path:
        """There while the SSH server refuses connections."""
        return self.folder / "ssh" / "cut.json"

    @property
    def supervisord_conf(self) -> Path:
        return self.folder / "supervisord.conf"

    @property
    def engine(self) -> Path:
        return self.folder / "engine"

    @property
    def engine_python(self) -> Path:
        return self.engine / "bin" / "python"

    @property
    def simulation(self) -> Path:
        return self.engine / "simulation"

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def shared(self) -> Path:
        return self.folder / "paths" / "shared"

    @property
    def data(self) -> Path:
        return self.folder / "paths" / "data"

    @property
    def target(self) -> Path:
        return self.shared / TARGET

    @property
    def draft(self) -> Path:
        return self.data / DRAFT

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def ballast(self) -> Path:
        return self.root / ".ballast"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def host_faults(self) -> Path:
        return self.folder / "faults"

    @property
    def socket(self) -> Path:
        """supervisord's unix socket, in the folder when its path fits into a socket address."""
        beside = self.folder / "supervisor.sock"
        if len(os.fsencode(beside)) + _SUPERVISOR_SUFFIX_BYTES <= _SUN_PATH_BYTES:
            return beside
        return self.short_run_dir / "supervisor.sock"

    @property
    def short_run_dir(self) -> Path:
        digest = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]
        return Path("/tmp") / f"ops-sandbox-{os.getuid()}-{digest}"


def changed_settings(settings: Settings, wishes: Mapping[str, Any]) -> Settings:
    """Settings with what a person asked for. Raises: ConfigError naming each value that cannot be."""
    try:
        return Settings.model_validate({**settings.model_dump(), **wishes})
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, item['loc']))} {item['input']}: {item['msg']}" for item in error.errors()
        )
        raise ConfigError(f"a sandbox cannot be set up like that: {wrong}", hint="ops sandbox up --help") from error


def project_root(start: Path | None = None) -> Path:
    """Find the project: `OPS_PROJECT`, else the nearest parent of `start` (default: here) with an `envs/`.

    Raises: ConfigError when there is none.
    """
    if start is None and (named := os.environ.get("OPS_PROJECT")):
        return Path(named).resolve()
    here = (start or Path.cwd()).resolve()
    for candidate in (here, *here.parents):
        if (candidate / "envs").is_dir():
            return candidate
    raise ConfigError(
        f"no project here: neither {here} nor a folder above it has an envs/ folder",
        hint="change into the project, or name it: OPS_PROJECT=/path/of/the/project",
    )


def folder_of(name: str, project: Path | None = None) -> Path:
    """`.sandbox/<name>` of the project. Raises: ConfigError for a name that is no plain host name."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name):
        raise ConfigError(
            f"'{name}' cannot be a sandbox's name: it becomes a host name (a-z, 0-9, '-', at most 63 characters)",
            hint="for example: ops sandbox up spare-1",
        )
    return (project.resolve() if project else project_root()) / ".sandbox" / name


def read_record(layout: Layout) -> Record | None:
    """Read `sandbox.json`; None when there is no sandbox. Raises: ConfigError when the file is broken."""
    try:
        return Record.model_validate_json(layout.record.read_text())
    except FileNotFoundError:
        return None
    except (ValidationError, OSError) as error:
        raise ConfigError(
            f"{layout.record} cannot be read as a sandbox's record: {error}",
            hint=f"'ops sandbox down' stops what belongs to it and removes {layout.folder}",
        ) from error


def write_record(layout: Layout, record: Record) -> None:
    write_file(layout.record, json.dumps(record.model_dump(), indent=2) + "\n")


def write_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file in one step, so that no reader ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(temporary).chmod(mode)
    Path(temporary).replace(path)
