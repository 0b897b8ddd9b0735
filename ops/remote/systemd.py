"""systemd: one unit for the engine, one boot unit and one transient timer for the guard."""

import filecmp
import os
import shutil
import subprocess

from ops.remote import processes
from ops.remote.agent import VerbError

UNIT_DIR = "/etc/systemd/system"
_STATES = {
    "active": "running",
    "reloading": "running",
    "activating": "starting",
    "deactivating": "running",
    "inactive": "stopped",
    "failed": "failed",
}


def _systemctl(*argv, timeout_s=60.0, check=True):
    done = subprocess.run(
        ["systemctl", "--no-ask-password", *argv], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if check and done.returncode != 0:
        raise VerbError(f"systemctl {' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Supervisor:
    """Units `sglang-<instance>.service`, `sglang-<instance>-guard.service`, timer
    `sglang-<instance>-deadline.timer`."""

    def __init__(self, *, instance, instance_dir, conf=None):
        self.instance_dir = instance_dir
        self.engine = f"sglang-{instance}.service"
        self.guard = f"sglang-{instance}-guard.service"
        self.deadline = f"sglang-{instance}-deadline"

    def _put(self, source, unit):
        target = os.path.join(UNIT_DIR, unit)
        if os.path.exists(target) and filecmp.cmp(source, target, shallow=False):
            return False
        temporary = f"{target}.ops-new"
        shutil.copyfile(source, temporary)
        os.chmod(temporary, 0o644)
        os.rename(temporary, target)
        _systemctl("daemon-reload")
        return True

    def install(self, release):
        self._put(os.path.join(self.instance_dir, "current", "engine.service"), self.engine)
        _systemctl("enable", "--quiet", self.engine)

    def install_guard(self, changed):
        self._put(os.path.join(self.instance_dir, "guard", "guard.service"), self.guard)
        _systemctl("enable", "--quiet", self.guard)

    def start(self):
        _systemctl("reset-failed", self.engine, check=False)
        _systemctl("start", "--no-block", self.engine)

    def stop(self, timeout_s):
        if self.state()["state"] != "absent":
            _systemctl("stop", self.engine, timeout_s=timeout_s + 30.0)

    def state(self):
        names = ("LoadState", "ActiveState", "SubState", "MainPID", "NRestarts", "UnitFileState", "Result")
        shown = _systemctl("show", self.engine, *(f"--property={name}" for name in names))
        facts = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
        pid = int(facts.get("MainPID", "0")) or None
        known = facts.get("LoadState") == "loaded"
        return {
            "state": _STATES.get(facts.get("ActiveState", ""), "failed") if known else "absent",
            "pid": pid,
            "started_at": processes.started_at(pid) if pid else None,
            "enabled": facts.get("UnitFileState") == "enabled",
            "detail": f"{facts.get('ActiveState')} ({facts.get('SubState')}), result {facts.get('Result')}",
        }

    def arm(self, deadline_s):
        self.disarm()
        script = os.path.join(self.instance_dir, "guard", "guard.sh")
        argv = ["systemd-run", "--quiet", "--collect", f"--unit={self.deadline}", f"--on-active={int(deadline_s) + 1}s"]
        # The second trigger covers a deadline whose first run found the clock a second short.
        argv += ["--on-unit-active=5s", "--timer-property=AccuracySec=500ms"]
        done = subprocess.run(
            [*argv, "/bin/sh", script, "expire", self.instance_dir],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if done.returncode != 0:
            raise VerbError(f"the guard's timer could not be set: {done.stderr.strip()}")

    def disarm(self):
        _systemctl("stop", f"{self.deadline}.timer", check=False)

    def boot_id(self):
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
