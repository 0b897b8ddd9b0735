"""Facts about the machine: GPUs, disk, shared memory, limits, and files that NCCL reads behind one's back."""

import csv
import io
import os
import resource
import shutil
import subprocess

_GPU_FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "driver_version", "compute_cap")


def nvidia_smi(*argv, timeout_s=20.0):
    """The tool's standard output, or None when it is not there or fails."""
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        done = subprocess.run(
            ["nvidia-smi", *argv],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None


def _rows(text):
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text)) if row]


def gpu_holders():
    """[{pid, gpu_uuid, used_mib, process_name}], or None when nvidia-smi does not answer."""
    text = nvidia_smi("--query-compute-apps=pid,gpu_uuid,used_memory,process_name", "--format=csv,noheader,nounits")
    if text is None:
        return None
    return [
        {"pid": int(row[0]), "gpu_uuid": row[1], "used_mib": _number(row[2]), "process_name": row[3]}
        for row in _rows(text)
    ]


def gpus():
    """{devices: [...], holders: [...], topology: text}, or None when nvidia-smi does not answer."""
    text = nvidia_smi(f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits")
    if text is None:
        return None
    devices = []
    for row in _rows(text):
        entry = dict(zip(_GPU_FIELDS, row))
        devices.append(
            {
                "index": int(entry["index"]),
                "uuid": entry["uuid"],
                "name": entry["name"],
                "total_mib": _number(entry["memory.total"]),
                "used_mib": _number(entry["memory.used"]),
                "driver": entry["driver_version"],
                "compute_cap": entry["compute_cap"],
            }
        )
    return {"devices": devices, "holders": gpu_holders() or [], "topology": nvidia_smi("topo", "-m")}


def _number(text):
    try:
        return int(float(text))
    except ValueError:  # "[N/A]" on some drivers
        return None


def disk(path):
    """{free_mib, total_mib, writable} of the file system that `path` is or will be on."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    usage = os.statvfs(path)
    return {
        "free_mib": usage.f_bavail * usage.f_frsize // (1 << 20),
        "total_mib": usage.f_blocks * usage.f_frsize // (1 << 20),
        "writable": os.path.isdir(path) and os.access(path, os.W_OK),
    }


def limits():
    """Soft and hard limits of this login: {memlock, nofile: [soft, hard]}; -1 means unlimited."""
    return {
        "memlock": list(resource.getrlimit(resource.RLIMIT_MEMLOCK)),
        "nofile": list(resource.getrlimit(resource.RLIMIT_NOFILE)),
    }


def nccl_files(home):
    """Files that change NCCL with a clean environment: [{path, content}]. Source: NCCL user guide, "Environment
    variables"."""
    found = []
    for path in ("/etc/nccl.conf", os.path.join(home, ".nccl.conf")):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                found.append({"path": path, "content": file.read()})
        except OSError:
            continue
    return found
