"""Other people's GPU containers, which a `systemctl daemon-reload` of ours can take the GPUs away from.

systemd re-applies the device rules of the control groups it manages, and forgets devices that have no link in
/dev/char; the container then says "Failed to initialize NVML: Unknown Error". Not in danger: containers whose devices
the runtime knows by name (`--device`, CDI), and Docker with the cgroupfs driver.
Source: https://github.com/NVIDIA/nvidia-container-toolkit/issues/48, issue 1227; NVIDIA Container Toolkit,
"Troubleshooting", "Containers losing access to GPUs".
"""

import glob
import json
import os
import shutil
import subprocess

_NVIDIA_LINKS = "/dev/char/195:*"  # 195: the major number of the NVIDIA devices


def _docker(*argv, timeout_s=20.0, partly=False):
    """The command's standard output, or None when it fails. partly: what it printed all the same."""
    try:
        done = subprocess.run(
            ["docker", *argv], capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 or partly else None


def reload_danger(instance_dir):
    """{cgroup_driver, char_links, containers}: running GPU containers that are not this instance's and that a reload
    could hurt; none where there is no Docker or it does not answer."""
    info = json.loads((_docker("info", "--format", "{{json .}}") if shutil.which("docker") else None) or "{}")
    links = bool(glob.glob(_NVIDIA_LINKS))
    driver = info.get("CgroupDriver")
    exposed = gpu_containers(instance_dir) if driver == "systemd" and not links else []
    return {"cgroup_driver": driver, "char_links": links, "containers": [c for c in exposed if not c["named"]]}


def gpu_containers(instance_dir):
    """Running containers with GPUs that are not this instance's: [{id, name, image, named}]; named: the runtime knows
    its devices by name, so a reload keeps them."""
    if shutil.which("docker") is None:
        return []
    listed = (_docker("ps", "--quiet", "--no-trunc") or "").split()
    default = (_docker("info", "--format", "{{.DefaultRuntime}}") or "").strip() if listed else ""
    ours = _own_container(instance_dir)
    found = []
    # One that ended since it was listed makes `inspect` fail, and the others are printed all the same.
    for entry in json.loads(_docker("inspect", *listed, partly=True) or "[]") if listed else []:
        named = _named(entry)
        if entry["Id"] != ours and (named or _injected(entry, default)):
            name = entry["Name"].lstrip("/")
            found.append({"id": entry["Id"], "name": name, "image": entry["Config"]["Image"], "named": named})
    return found


def _own_container(instance_dir):
    try:
        with open(os.path.join(instance_dir, "container.id"), encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return None


def _named(container):
    settings = container["HostConfig"]
    devices = settings.get("Devices") or []
    requests = settings.get("DeviceRequests") or []
    return any("/dev/nvidia" in d.get("PathOnHost", "") for d in devices) or any(
        r.get("Driver") == "cdi" for r in requests
    )


def _injected(container, default_runtime):
    settings = container["HostConfig"]
    requests = settings.get("DeviceRequests") or []
    if any("gpu" in group for request in requests for group in request.get("Capabilities") or []):
        return True
    runtime = settings.get("Runtime") or default_runtime
    wanted = dict(entry.split("=", 1) for entry in container["Config"].get("Env") or [] if "=" in entry)
    return runtime == "nvidia" and wanted.get("NVIDIA_VISIBLE_DEVICES", "void") not in ("void", "none", "")


def blind(containers):
    """The names of those `containers` in which nvidia-smi does not work."""
    return [c["name"] for c in containers if _docker("exec", c["id"], "nvidia-smi", "-L") is None]


def inspect(container):
    """What Docker says of one container: {image, environ, started_at, running}, or None when it knows none."""
    found = json.loads(_docker("inspect", container) or "[]") if shutil.which("docker") else []
    if not found:
        return None
    entry = found[0]
    return {
        "image": entry["Config"]["Image"],
        "environ": dict(item.split("=", 1) for item in entry["Config"].get("Env") or [] if "=" in item),
        "started_at": entry["State"]["StartedAt"],
        "running": entry["State"]["Running"],
        "restart_policy": entry["HostConfig"]["RestartPolicy"]["Name"],
    }


def running_of(instance_dir):
    """The container that this instance started, as `inspect` describes it; None when there is none."""
    own = _own_container(instance_dir)
    return inspect(own) if own else None
