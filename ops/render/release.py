"""`render`: the whole release folder, its id and its manifest."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, Literal

from ops.errors import ConfigError
from ops.model.inventory import HostSpec
from ops.model.nccl import NcclSet
from ops.model.profile import SECRET_FLAGS, Profile
from ops.model.release import Release, ReleaseFile
from ops.model.stack import Stack
from ops.render import argv, ensemble
from ops.render.env_file import engine_environment, env_lines, secret_environment, without_secrets
from ops.render.files import fill

SupervisorName = Literal["systemd", "supervisord"]
UNITS: dict[SupervisorName, str] = {"systemd": "engine.service", "supervisord": "supervisor.conf"}
MANIFEST_SCHEMA = 1


def render(
    profile: Profile,
    stack: Stack,
    nccl: NcclSet,
    host: HostSpec,
    *,
    supervisor: SupervisorName | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Release:
    """Render one profile for one host.

    Args:
        supervisor: what was detected on the host; the inventory's `ops_supervisor` wins.
        secrets: values of `profile.secrets`; they reach 0600 files only, never the id or the manifest.
    Raises: ConfigError for a missing secret, a missing image digest, an unknown supervisor, ranks that cannot be
        shared out over the host's ensemble.
    """
    keeper = host.supervisor or supervisor
    if keeper is None:
        raise ConfigError(
            f"host {host.name}: is it systemd or supervisord?", hint="set ops_supervisor in the inventory, or connect"
        )
    if profile.runtime == "native":
        host = host.model_copy(update={"engine_python": engine_python(stack, host)})
    host = ensemble.met(profile, stack, nccl, host)
    values = secrets or {}
    environment = engine_environment(profile, nccl, host)
    files = [
        ReleaseFile("launch.sh", fill("launch.sh.j2", _launch_values(profile, stack, host)), 0o755),
        ReleaseFile("engine.env", env_lines({**environment, **secret_environment(profile, values)}), 0o600),
        ReleaseFile(UNITS[keeper], fill(f"{UNITS[keeper]}.j2", _unit_values(profile, stack, host)), 0o644),
    ]
    if argv.secret_flags(profile):
        files.append(ReleaseFile(argv.SECRETS_FILE, argv.secrets_file(profile, values), 0o600))
    if profile.nccl_conf:
        files.append(ReleaseFile("nccl.conf", fill("nccl.conf.j2", {"nccl": nccl}), 0o644))
    public = {file.name: _public(profile, file) for file in files}
    identity = _identity(profile.name, public)
    manifest = _manifest(profile, stack, nccl, host, keeper, environment)
    manifest |= {"release": identity, "files": _file_list(files, public)}
    manifest |= ensemble.in_manifest(profile, stack, nccl, host)
    content = (json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
    files.append(ReleaseFile("manifest.json", content, 0o644))
    return Release(identity, profile.name, host.name, tuple(files), manifest)


def _public(profile: Profile, file: ReleaseFile) -> bytes:
    if file.name not in ("engine.env", argv.SECRETS_FILE):
        return file.content
    return without_secrets(file.content, (*profile.secrets, *SECRET_FLAGS))


def _identity(profile: str, public: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(public.items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return f"{profile}-{digest.hexdigest()[:12]}"


def _file_list(files: list[ReleaseFile], public: Mapping[str, bytes]) -> dict[str, Any]:
    return {
        file.name: {
            "sha256": hashlib.sha256(public[file.name]).hexdigest(),
            "mode": f"{file.mode:04o}",
            "secrets_left_out": public[file.name] != file.content,
        }
        for file in files
    }


def _launch_values(profile: Profile, stack: Stack, host: HostSpec) -> dict[str, Any]:
    docker = profile.runtime == "docker"
    return {
        "profile": profile,
        "host": host,
        "flags": argv.engine_argv(profile, host),
        "container": argv.container_argv(profile, stack, host) if docker else (),
        "image": argv.image_word(profile, stack) if docker else "",
        "image_name": stack.image.reference if docker and stack.image else "",
        "container_name": argv.container_name(host),
        "container_python": argv.CONTAINER_PYTHON,
        "container_uid": str(argv.CONTAINER_UID),
        "owner_format": argv.OWNER_FORMAT,
        "has_secret_flags": bool(argv.secret_flags(profile)),
        "secrets_file": argv.SECRETS_FILE,
        "container_secrets": argv.CONTAINER_SECRETS,
    }


def engine_python(stack: Stack, host: HostSpec) -> str:
    """The Python that a native release starts: of the stack's environment where the host keeps such, else the host's.

    Raises: ConfigError when the host keeps such and the stack has no lock.
    """
    if host.stacks is None:
        return host.engine_python
    if stack.lock_sha256 is None:
        raise ConfigError(f"stack {stack.name} has no lock", hint=f"ops stack lock {stack.name}", host=host.name)
    return f"{host.stacks.rstrip('/')}/{stack.folder}/bin/python"


def _software(profile: Profile, stack: Stack, host: HostSpec) -> dict[str, Any]:
    """What the release runs on, to be looked for, proven, fetched and kept (`ops.remote.stack`)."""
    common = {"stack": stack.name, "lock": stack.lock_sha256}
    if profile.runtime == "docker":
        reference = stack.image.reference if stack.image and stack.image.digest else None
        return {"kind": "image", "id": argv.image_word(profile, stack), "reference": reference, **common}
    if host.stacks is not None:
        return {"kind": "venv", "path": host.engine_python.removesuffix("/bin/python"), **common}
    return {"kind": "python", "path": host.engine_python, **common}


def _unit_values(profile: Profile, stack: Stack, host: HostSpec) -> dict[str, Any]:
    paths = [host.root, host.path(profile.engine.model_path)]
    if profile.speculation is not None:
        paths.append(host.path(profile.speculation.draft_path))
    if profile.runtime == "native":
        paths.append(host.engine_python)
    return {
        "profile": profile,
        "stack": stack,
        "host": host,
        "dir": host.instance_dir,
        "mounts": list(dict.fromkeys(paths)),
        "stop_wall_s": max(1, math.ceil(profile.timeouts.stop_timeout_s / host.time_scale)),
    }


def _manifest(
    profile: Profile, stack: Stack, nccl: NcclSet, host: HostSpec, keeper: SupervisorName, environment: dict[str, str]
) -> dict[str, Any]:
    spec = profile.speculation
    return {
        "schema": MANIFEST_SCHEMA,
        "profile": profile.model_dump(mode="json"),
        "stack": stack.model_dump(mode="json"),
        "stack_lock_sha256": stack.lock_sha256,
        "software": _software(profile, stack, host),
        "nccl": nccl.model_dump(mode="json"),
        "host": host.name,
        "instance": host.instance,
        "supervisor": keeper,
        "unit": UNITS[keeper],
        "runtime": profile.runtime,
        "argv": argv.words(argv.engine_argv(profile, host)),
        "environment": environment,
        "secrets": sorted(profile.secrets),
        "expect": {
            "port": profile.engine.port,
            "address": host.bind or profile.engine.host,
            "ranks": host.ranks(profile.engine.ranks),
            "server_info": argv.server_info(profile, host),
        },
        "pins": {
            "target": {
                "path": host.path(profile.engine.model_path),
                **profile.target.model_dump(mode="json"),
            },
            "draft": {"path": host.path(spec.draft_path), **spec.draft.model_dump(mode="json")} if spec else None,
        },
    }
