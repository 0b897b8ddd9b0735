"""Lays down the files of a sandbox: keys, the engine's virtual environment, stubs, configuration, inventory.

Everything here is idempotent: a second call changes nothing that is right already, and keys are made once.
"""

import importlib.util
import json
import os
import shlex
import shutil
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import yaml

from ops.errors import Refused
from ops.sandbox.layout import SSH_USER, Layout, Record, write_file
from ops.sandbox.models import write_models

_ENGINE_NEEDS = ("starlette", "uvicorn", "setproctitle", "anyio", "h11", "click")


def lay_down(layout: Layout, record: Record) -> None:
    """Make or mend everything that a sandbox needs before its daemons start."""
    for folder in (layout.bin, layout.home, layout.log, layout.root, layout.host_faults, layout.shared, layout.data):
        folder.mkdir(parents=True, exist_ok=True)
    _keys(layout)
    _known_hosts(layout, record)
    _engine(layout, record)
    _nvidia_smi(layout)
    write_models(layout)
    _write_if_changed(layout.supervisord_conf, supervisord_conf(layout, record))
    _write_if_changed(layout.inventory, inventory(layout, record))


def _keys(layout: Layout) -> None:
    layout.host_key.parent.mkdir(mode=0o700, exist_ok=True)
    for key in (layout.host_key, layout.client_key):
        if not key.exists() or not _public(key).exists():
            private, public = _new_key(f"ops-sandbox-{key.name}")
            write_file(_public(key), public)
            write_file(key, private, mode=0o600)


def _public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


def _new_key(comment: str) -> tuple[str, str]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return private, f"{public} {comment}\n"


def _known_hosts(layout: Layout, record: Record) -> None:
    kind, key = _public(layout.host_key).read_text().split()[:2]
    _write_if_changed(layout.known_hosts, f"[{record.address}]:{record.ssh_port} {kind} {key}\n")


def _engine(layout: Layout, record: Record) -> None:
    from ops.sandbox.engine.install import Simulation, install_engine, write_simulation

    if not layout.engine_python.exists():
        shutil.rmtree(layout.engine, ignore_errors=True)
        venv.EnvBuilder(with_pip=False, symlinks=True).create(layout.engine)
    packages = Path(
        sysconfig.get_path("purelib", "venv", vars={"base": str(layout.engine), "platbase": str(layout.engine)})
    )
    _write_if_changed(packages / "engine-needs.pth", "".join(f"{folder}\n" for folder in _engine_needs()))
    install_engine(packages)
    settings = record.settings
    simulation = Simulation(
        time_scale=settings.time_scale,
        noise=settings.noise,
        seed=settings.seed,
        load_s=settings.load_s,
        gpus={"label": record.name, **settings.gpus},
        knobs=settings.knobs,
    )
    write_simulation(layout.simulation, simulation)


def _engine_needs() -> list[Path]:
    """Folders in which this interpreter finds what the simulated engine imports."""
    folders: dict[Path, None] = {}
    for name in _ENGINE_NEEDS:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise Refused(
                f"the simulated engine needs the Python package '{name}', and it is not installed",
                hint="install the sandbox's packages: pip install 'ops[sandbox]' (or run 'make demo')",
            )
        origin = Path(spec.origin)
        folders[origin.parent.parent if origin.name == "__init__.py" else origin.parent] = None
    return list(folders)


def _nvidia_smi(layout: Layout) -> None:
    from ops.sandbox.engine import install

    for name in ("gpu.py", "nvidia_smi.py"):
        _write_if_changed(layout.bin / name, (Path(install.__file__).parent / name).read_text())
    stub = [str(layout.engine_python), "-I", "-S", str(layout.bin / "nvidia_smi.py"), str(layout.simulation)]
    script = f'#!/bin/sh\n# Stub: shows the GPUs of the simulated engine.\nexec {shlex.join(stub)} "$@"\n'
    _write_if_changed(layout.bin / "nvidia-smi", script, mode=0o755)


def supervisord_conf(layout: Layout, record: Record) -> str:
    """Render `supervisord.conf`. The include globs are those that every supervisord host has (docs/architecture.md)."""
    socket, log = _ini(layout.socket), _ini(layout.log)
    return f"""\
; Made by 'ops sandbox up' for the sandbox {record.name}.
[unix_http_server]
file={socket}
chmod=0700

[supervisord]
identifier={record.name}
nodaemon=true
logfile={log}/supervisord.log
logfile_maxbytes=5MB
logfile_backups=1
pidfile={_ini(layout.folder)}/supervisord.pid
childlogdir={log}
directory={_ini(layout.home)}
{"user=root" if os.getuid() == 0 else ""}

[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface

[supervisorctl]
serverurl=unix://{socket}

[include]
files = root/*/guard/supervisor.conf root/*/current/supervisor.conf
"""


def _ini(path: Path) -> str:
    return str(path).replace("%", "%%")


def supervisorctl() -> Path:
    """`supervisorctl` beside the running interpreter. Raises: Refused when it is not installed."""
    path = Path(sys.executable).parent / "supervisorctl"
    if not path.exists():
        raise Refused(
            f"no supervisorctl beside {sys.executable}: the sandbox's packages are not installed",
            hint="install them: pip install 'ops[sandbox]' (or run 'make demo')",
        )
    return path


def host_variables(layout: Layout, record: Record) -> dict[str, Any]:
    """Inventory variables of the sandbox, with absolute paths."""
    return {
        "ansible_host": record.address,
        "ansible_port": record.ssh_port,
        "ansible_user": SSH_USER,
        "ansible_ssh_private_key_file": str(layout.client_key),
        "ansible_ssh_common_args": (
            f"-o {shlex.quote(f'UserKnownHostsFile={_ssh(layout.known_hosts)}')}"
            " -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes"
        ),
        "ansible_python_interpreter": str(layout.engine_python),
        "ansible_remote_tmp": str(layout.home / ".ansible" / "tmp"),
        "ops_known_hosts": str(layout.known_hosts),
        "ops_root": str(layout.root),
        "ops_engine_python": str(layout.engine_python),
        "ops_paths": {"/shared": str(layout.shared), "/data": str(layout.data)},
        "ops_bind": record.address,
        "ops_search_path": [str(layout.bin)],
        "ops_supervisor": "supervisord",
        "ops_supervisor_conf": str(layout.supervisord_conf),
        "ops_supervisorctl": str(supervisorctl()),
        "ops_time_scale": record.settings.time_scale,
    }


def _ssh(path: Path) -> str:
    """A path as OpenSSH's option parser wants it: quoted when it has spaces."""
    return f'"{path}"' if " " in str(path) else str(path)


def inventory(layout: Layout, record: Record) -> str:
    hosts = {"all": {"hosts": {record.name: host_variables(layout, record)}}}
    header = f"# The sandbox {record.name}, made by 'ops sandbox up'. Use: OPS_INVENTORY={layout.inventory} ops ...\n"
    return header + yaml.safe_dump(hosts, sort_keys=False, width=1000, default_flow_style=False)


def _write_if_changed(path: Path, text: str, mode: int = 0o644) -> None:
    if not path.is_file() or path.read_text() != text:
        write_file(path, text, mode=mode)


def forget_gpu_holders(layout: Layout) -> None:
    """What a power cut does to GPU memory: nobody holds any, at once."""
    for entry in layout.simulation.glob("gpu/*/*"):
        entry.unlink(missing_ok=True)


def gpu_entries(layout: Layout) -> list[tuple[int, int]]:
    """(pid, starttime) of whoever wrote an entry for GPU memory, dead or alive."""
    entries = []
    for path in layout.simulation.glob("gpu/*/*.json"):
        try:
            entry = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            # Being written or removed by its rank at this moment.
            continue
        entries.append((int(entry["pid"]), int(entry["starttime"])))
    return entries
