"""Processes and sockets, read from /proc. A process is ours when its environment carries this instance's marker."""

import os
import pwd
import socket
import struct

from ops.remote import peek

MARKER = "OPS_INSTANCE_DIR"


def environ(pid):
    """The environment that `pid` was started with; None when it cannot be read or was blanked.

    Setting a process title overwrites the area with NUL bytes unless SPT_NOENV=1 was set at start.
    """
    return environs([pid])[pid]


def environs(pids):
    """{pid: its environment, as `environ` returns it}; another user's processes are read as that user."""
    found: "dict[int, dict | None]" = {}
    closed = []
    for pid in pids:
        found[pid] = None
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                found[pid] = _variables(file.read())
        except PermissionError:
            closed.append(pid)
        except OSError:
            continue
    for pid, seen in peek.as_owner(closed).items():
        found[pid] = _variables(seen["environ"])
    return found


def _variables(raw):
    if not raw.strip(b"\0"):
        return None
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def stat(pid):
    """{name, ppid, session, starttime (clock ticks after boot), state}, or None when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            head, _, tail = file.read().rpartition(") ")
            fields = tail.split()
    except OSError:
        return None
    return {
        "name": head.partition("(")[2],
        "state": fields[0],
        "ppid": int(fields[1]),
        "session": int(fields[3]),
        "starttime": int(fields[19]),
    }


def alive(pid, starttime=None):
    """True while `pid` (of that start time) runs; a zombie does not."""
    found = stat(pid)
    return found is not None and found["state"] not in "ZX" and starttime in (None, found["starttime"])


def unseen(pid):
    """True when `pid` lives but its environment is closed to us: whether it is ours is not known then."""
    return alive(pid) and environ(pid) is None


def title(pid):
    """The command line as `ps` shows it."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def user(pid):
    """The name of the process's user (its number when it has no name), or "" when it is gone."""
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def started_at(pid):
    """Epoch seconds at which `pid` started, or None."""
    found = stat(pid)
    if found is None:
        return None
    with open("/proc/stat", encoding="utf-8") as file:
        boot = next(int(line.split()[1]) for line in file if line.startswith("btime"))
    return boot + found["starttime"] / os.sysconf("SC_CLK_TCK")


def ours(instance_dir):
    """Every live process of this instance: [{pid, ppid, session, starttime, title, user, release, environ}].

    Found by the marker in the environment, and by descent from a marked process whose child blanked its own.
    """
    found = {}
    blank = []
    for pid, variables in environs(all_pids()).items():
        if variables is None:
            blank.append(pid)
        elif variables.get(MARKER) == instance_dir:
            entry = describe(pid, variables)
            if entry:
                found[pid] = entry
    for pid in blank:
        entry = describe(pid, None)
        if entry and entry["ppid"] in found:
            found[pid] = {**entry, "release": found[entry["ppid"]]["release"]}
    return sorted(found.values(), key=lambda p: p["pid"])


def describe(pid, variables):
    facts = stat(pid)
    if facts is None or facts["state"] in "ZX":
        return None
    release = (variables or {}).get("OPS_RELEASE")
    return {
        "pid": pid,
        "ppid": facts["ppid"],
        "session": facts["session"],
        "starttime": facts["starttime"],
        "title": title(pid),
        "user": user(pid),
        "release": release,
        "environ": variables,
    }


def zombies():
    """Ended processes that nobody reaped: [{pid, ppid, name, parent}]."""
    found = []
    for pid in all_pids():
        facts = stat(pid)
        if facts is not None and facts["state"] == "Z":
            found.append({"pid": pid, "ppid": facts["ppid"], "name": facts["name"], "parent": title(facts["ppid"])})
    return found


def listeners(ports):
    """Who listens on `ports`: [{port, address, pid, title, user}]; pid None when it cannot be seen."""
    inodes = {}
    for path, width in (("/proc/net/tcp", 4), ("/proc/net/tcp6", 16)):
        try:
            with open(path, encoding="ascii") as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except FileNotFoundError:
            continue
        for row in rows:
            address, _, port = row[1].partition(":")
            if row[3] == "0A" and int(port, 16) in ports:
                inodes[row[9]] = {"port": int(port, 16), "address": _address(address, width)}
    if not inodes:
        return []
    owners = _socket_owners(set(inodes))
    found = []
    for inode, entry in inodes.items():
        pid = owners.get(inode)
        found.append({**entry, "pid": pid, "title": title(pid) if pid else "", "user": user(pid) if pid else ""})
    return sorted(found, key=lambda e: (e["port"], e["address"]))


def listening_on(endpoints):
    """Who listens on one of `endpoints` ([address, port]), or on an address that covers it."""
    wildcards = ("0.0.0.0", "::")
    return [
        entry
        for entry in listeners({port for _, port in endpoints})
        if any(
            port == entry["port"]
            and (address == entry["address"] or address in wildcards or entry["address"] in wildcards)
            for address, port in endpoints
        )
    ]


def _address(text, width):
    words = [struct.pack("=I", int(text[i : i + 8], 16)) for i in range(0, 2 * width, 8)]
    return socket.inet_ntop(socket.AF_INET if width == 4 else socket.AF_INET6, b"".join(words))


def _socket_owners(inodes):
    owners: dict[str, int] = {}
    closed = []
    for pid in all_pids():
        try:
            handles = os.listdir(f"/proc/{pid}/fd")
        except PermissionError:
            closed.append(pid)
            continue
        except OSError:
            continue
        for handle in handles:
            try:
                target = os.readlink(f"/proc/{pid}/fd/{handle}")
            except PermissionError:  # the folder is open to more than what is in it
                closed.append(pid)
                break
            except OSError:
                continue
            if target.startswith("socket:[") and target[8:-1] in inodes:
                owners.setdefault(target[8:-1], pid)
    if len(owners) < len(inodes):
        for pid, seen in peek.as_owner(closed).items():
            for inode in inodes.intersection(seen["sockets"]):
                owners.setdefault(inode, pid)
    return owners
