"""Facts about the machine: GPUs, disk, shared memory, limits, and files that NCCL reads behind one's back."""

import csv
import io
import os
import re
import resource
import shutil
import subprocess
import time

from ops.remote import processes

_GPU_FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "driver_version", "compute_cap")


_MEMORY_LATE_S = 5.0  # wall seconds
_XID = re.compile(r"NVRM: Xid \((?P<device>[^)]*)\): (?P<code>\d+)")


def nvidia_smi(*argv, timeout_s=20.0):
    """The tool's standard output, or None when it is not there or fails."""
    return _nvidia_smi(argv, timeout_s)[0]


def _nvidia_smi(argv, timeout_s=20.0):
    """(standard output or None, why not)."""
    if shutil.which("nvidia-smi") is None:
        return None, "there is no nvidia-smi"
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
        return None, f"nvidia-smi did not answer within {timeout_s:.0f} s"
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines() or [f"exit status {done.returncode}"]
        return None, " ".join(said)[:300]
    return done.stdout, ""


def gpu_problem():
    """What nvidia-smi says when it does not work, such as a driver that does not fit its library; else empty."""
    return _nvidia_smi(("-L",))[1]


def xids():
    """Errors of GPUs that the kernel logged since boot: [{device, code, line}]; None when its log cannot be read.

    Source: NVIDIA, "XID Errors"; lines such as `NVRM: Xid (PCI:0000:41:00): 79, pid=1234, GPU has fallen off the bus.`
    """
    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace", timeout=20, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    found = []
    for line in done.stdout.splitlines():
        match = _XID.search(line)
        if match:
            found.append({"device": match["device"], "code": int(match["code"]), "line": line.strip()[:300]})
    return found


def _rows(text):
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text)) if row]


def gpu_holders():
    """[{pid, gpu_uuid, used_mib, process_name, user, ppid, state, age_s}], or None when nvidia-smi does not answer.

    user "", state None: there is no such process here (it runs in another container, or is gone)."""
    text = nvidia_smi("--query-compute-apps=pid,gpu_uuid,used_memory,process_name", "--format=csv,noheader,nounits")
    if text is None:
        return None
    return [
        {"gpu_uuid": row[1], "used_mib": _number(row[2]), "process_name": row[3], **_who(int(row[0]))}
        for row in _rows(text)
    ]


def _who(pid):
    facts = processes.stat(pid)
    started = processes.started_at(pid)
    return {
        "pid": pid,
        "user": processes.user(pid),
        "ppid": facts["ppid"] if facts else None,
        "state": facts["state"] if facts else None,
        "age_s": round(time.time() - started) if started else None,
    }


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
    return {"devices": devices, "holders": _settled_holders(), "topology": nvidia_smi("topo", "-m")}


def _settled_holders():
    """The holders, after a moment for those that just ended: a driver gives their memory back 1-2 s late."""
    deadline = time.monotonic() + _MEMORY_LATE_S
    while True:
        found = gpu_holders() or []
        if all(holder["state"] not in (None, "", "Z") for holder in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.25)


def devices(emit):
    """Verb form of `gpus`."""
    return {"gpus": gpus()}


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


def nccl_files(homes, named=()):
    """Files that change NCCL with a clean environment: [{path, content}].

    Args: homes: home folders of the engine's users. named: files that NCCL_CONF_FILE names.
    Source: NCCL src/misc/param.cc, initEnv: NCCL_CONF_FILE or ~/.nccl.conf of the process's user, then /etc/nccl.conf.
    """
    found = []
    for path in dict.fromkeys([*named, *(os.path.join(home, ".nccl.conf") for home in homes), "/etc/nccl.conf"]):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                found.append({"path": path, "content": file.read()})
        except OSError:
            continue
    return found


_LOGIN_FILES = (".profile", ".bash_profile", ".bashrc", ".zshrc", ".zshenv", ".cshrc", ".tcshrc", ".login")
_SETTING = re.compile(
    r"\s*(?P<head>(?:export\s+|setenv\s+|set\s+-\w*x\w*\s+)?(?P<family>NCCL|CUDA|HF|SGLANG)_[A-Z0-9_]+[\s=])"
    r"\s*(?P<value>[\w.,:=^/-]*)"
)
_SHOWN = ("NCCL", "CUDA")
"""Families whose values are no secrets; an HF_TOKEN or SGLANG_API_KEY never leaves the host, nor what follows it."""


def login_files(home):
    """Lines of login files that set variables which a service never gets: [{path, line, text}]; text: the first
    variable of the line, with its value only where that is no secret.

    Args: home: of the user who logs in.
    """
    folder = "/etc/profile.d"
    scripts = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    paths = ["/etc/environment", "/etc/profile", *(os.path.join(folder, name) for name in scripts)]
    paths += [os.path.join(home, name) for name in (*_LOGIN_FILES, ".config/fish/config.fish")]
    found = []
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = file.read().splitlines()
        except OSError:
            continue
        for number, text in enumerate(lines, 1):
            match = _SETTING.match(text)
            if match:
                value = match["value"][:100] if match["family"] in _SHOWN else "…"
                found.append({"path": path, "line": number, "text": match["head"] + value})
    return found


def reboot(emit, *, boot_id):
    """Ask the host's systemd for an orderly reboot, unless it left the boot `boot_id` already (asked twice after a
    broken connection). Returns {asked, problem}; the answer leaves before the host goes down."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        if file.read().strip() != boot_id:
            return {"asked": False, "problem": ""}
    done = subprocess.run(
        ["systemctl", "--no-ask-password", "--no-block", "reboot"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return {"asked": done.returncode == 0, "problem": done.stderr.strip() if done.returncode else ""}
