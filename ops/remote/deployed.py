"""What lies and runs on the host for the current release, for `ops verify`: read only."""

import hashlib
import os
import pwd
import re
import stat

from ops.remote import containers, durable, facts, guard, lifecycle, machine, processes, store, supervisors

_SET_LINE = re.compile(
    r"^(?P<host>\S+?):(?P<pid>\d+):\d+ \[(?P<gpu>\d+)\] NCCL INFO (?P<name>NCCL_[A-Z0-9_]+) "
    r"set by environment to (?P<value>\S*?)\.?\s*$"
)
"""Source: NCCL 2.28 with NCCL_DEBUG=INFO, recordings nccl_info_ll.log and nccl_blocks_ll.log of SGLang 0.5.17. A rank's
output comes in blocks that end amid a line, so what is taken for a value must not hold a space."""
_LIMITS = {"Max locked memory": "memlock", "Max open files": "nofile"}


def look(emit, *, instance_dir, supervisor, secrets):
    """Everything about the deployed release that `facts.observe` does not hold.

    Args: secrets: {release: names whose values its files were hashed without}.
    Returns {release, folder: [files], identity, guard: [files], units: [as supervisor.inspect], nccl_log: [settings],
    nccl_files, limits: {pid: {...}}, container}.
    """
    release = store.links(instance_dir)["current"]
    ranks = [p for p in processes.ours(instance_dir) if "sglang::scheduler" in p["title"]]
    found = {"release": release, "folder": [], "identity": None, "nccl_log": []}
    if release is not None:
        folder = os.path.join(instance_dir, "releases", release)
        names = secrets.get(release, [])
        found["folder"] = [_file(folder, name, names) for name in sorted(os.listdir(folder))]
        found["identity"] = _identity(folder, release, names)
        found["nccl_log"] = nccl_settings(os.path.join(instance_dir, "logs", f"{release}.log"))
    return {
        **found,
        "guard": _guard_files(instance_dir),
        "units": supervisors.get(supervisor).inspect(),
        "nccl_files": machine.nccl_files(facts.homes(ranks), _conf_files(ranks)),
        "limits": {str(rank["pid"]): limits(rank["pid"]) for rank in ranks},
        "container": containers.running_of(instance_dir),
    }


def _conf_files(ranks):
    named = {(rank["environ"] or {}).get("NCCL_CONF_FILE") for rank in ranks}
    return sorted(path for path in named if path)


def _file(folder, name, secrets):
    path = os.path.join(folder, name)
    facts_of = os.lstat(path)
    regular = stat.S_ISREG(facts_of.st_mode)
    return {
        "name": name,
        "sha256": hashlib.sha256(_public(path, secrets)).hexdigest() if regular else None,
        "mode": f"{facts_of.st_mode & 0o7777:04o}",
        "owner": _user(facts_of.st_uid),
    }


def _user(uid):
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _public(path, secrets):
    """A file's bytes with the values of `secrets` emptied, as ids and digests are made (ops.render.env_file)."""
    with open(path, "rb") as file:
        content = file.read()
    if os.path.basename(path) in ("engine.env", "secrets.yaml"):
        for name in secrets:
            content = re.sub(rb"(?m)^(%s)(=|: ).*$" % re.escape(name.encode()), rb"\1\2", content)
    return content


def _identity(folder, release, secrets):
    """The id that the files as they are now would have (ops.render.release), for comparison with the folder's name."""
    digest = hashlib.sha256()
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name != "manifest.json" and os.path.isfile(path):
            content = _public(path, secrets)
            digest.update(f"{name} {len(content)}\n".encode() + content)
    return f"{release.rpartition('-')[0]}-{digest.hexdigest()[:12]}"


def _guard_files(instance_dir):
    """The guard's files against what was installed: [{name, sha256, mode, wanted}]; None: nobody wrote that down."""
    folder = os.path.join(instance_dir, "guard")
    found = []
    installed = guard.installed(instance_dir)
    if installed is None:
        return None
    for name, wanted in installed.items():
        path = os.path.join(folder, name)
        present = os.path.isfile(path)
        found.append(
            {
                "name": name,
                "sha256": durable.sha256(path) if present else None,
                "mode": f"{os.stat(path).st_mode & 0o7777:04o}" if present else None,
                "wanted": wanted,
            }
        )
    return found


def nccl_settings(log):
    """What NCCL itself said that it read from the environment since the last start: [{pid, gpu, name, value}]."""
    begin = lifecycle.last_start_offset(log)
    found = []
    try:
        with open(log, "rb") as file:
            file.seek(begin)
            for raw in file:
                if b" set by environment to " in raw:
                    match = _SET_LINE.match(raw.decode(errors="replace"))
                    if match:
                        entry = match.groupdict()
                        found.append({**entry, "pid": int(entry["pid"]), "gpu": int(entry["gpu"])})
    except FileNotFoundError:
        return []
    return found


def limits(pid):
    """{memlock, nofile: [soft, hard]} of a running process; -1 means unlimited."""
    found = {}
    try:
        with open(f"/proc/{pid}/limits", encoding="ascii") as file:
            for line in file:
                for title, name in _LIMITS.items():
                    if line.startswith(title):
                        found[name] = [-1 if word == "unlimited" else int(word) for word in line[26:].split()[:2]]
    except OSError:
        return {}
    return found
