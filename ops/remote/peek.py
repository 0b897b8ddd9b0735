"""Read what /proc shows of another user's processes, where this root may not.

A container's root often lacks CAP_SYS_PTRACE: then /proc/<pid>/environ and /proc/<pid>/fd of an engine that runs as its
own user are closed to it, but not to that user. Source: proc(5), ptrace(2) "Ptrace access mode checking".
"""

import json
import os
import pwd
import subprocess
import sys

_ANY_PYTHON = "/usr/bin/python3"
"""Where a Python is for everybody, when the agent's own lies in a folder of root's."""
_READ = """
import json, os, sys
found = {}
for pid in sys.argv[1:]:
    try:
        with open("/proc/%s/environ" % pid, "rb") as file:
            environ = file.read().decode("latin-1")
        handles = os.listdir("/proc/%s/fd" % pid)
    except OSError:
        continue
    sockets = []
    for handle in handles:
        try:
            target = os.readlink("/proc/%s/fd/%s" % (pid, handle))
        except OSError:
            continue
        if target.startswith("socket:["):
            sockets.append(target[8:-1])
    found[pid] = {"environ": environ, "sockets": sockets}
json.dump(found, sys.stdout)
"""


def as_owner(pids):
    """{pid: {environ: bytes, sockets: [inodes]}} of `pids`, each read as the user it runs as.

    Nothing of what cannot be read that way either; nothing at all unless we are root.
    """
    found: dict[int, dict] = {}
    if os.geteuid() != 0:
        return found
    by_user: dict[int, list] = {}
    for pid in pids:
        try:
            by_user.setdefault(os.stat(f"/proc/{pid}").st_uid, []).append(pid)
        except OSError:
            continue
    by_user.pop(0, None)
    for uid, theirs in by_user.items():
        for pid, seen in _read(uid, theirs).items():
            found[int(pid)] = {"environ": seen["environ"].encode("latin-1"), "sockets": seen["sockets"]}
    return found


def _read(uid, pids):
    try:
        group = pwd.getpwuid(uid).pw_gid
    except KeyError:
        group = uid
    for program in dict.fromkeys((sys.executable, _ANY_PYTHON)):
        argv = [program, "-IS", "-c", _READ, *(str(pid) for pid in pids)]
        try:
            done = subprocess.run(
                argv,
                user=uid,
                group=group,
                extra_groups=[],
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
                cwd="/",
            )
        except OSError:  # that user may not enter the interpreter's folder
            continue
        except subprocess.SubprocessError:
            return {}
        if done.returncode == 0:
            return json.loads(done.stdout)
    return {}
