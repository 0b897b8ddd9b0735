"""systemd: one unit for the engine; for the guard a boot unit, a transient timer for the deadline, one for the logs."""

import filecmp
import os
import subprocess

from ops.remote import containers, durable, processes
from ops.remote.refusal import VerbError

UNIT_DIR = "/etc/systemd/system"
_STATES = {
    "active": "running",
    "reloading": "running",
    "activating": "starting",
    "deactivating": "running",
    "inactive": "stopped",
    "failed": "failed",
}
_ENABLED = ("enabled", "static")  # static: what a timer starts has nothing to enable
_SHOWN = ("LoadState", "ActiveState", "SubState", "MainPID", "NRestarts", "UnitFileState", "Result", "NeedDaemonReload")
_INSPECTED = ("LoadState", "UnitFileState", "FragmentPath", "DropInPaths", "NeedDaemonReload", "EnvironmentFiles")


def _systemctl(*argv, timeout_s=60.0, check=True):
    done = subprocess.run(
        ["systemctl", "--no-ask-password", *argv], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if check and done.returncode != 0:
        raise VerbError(
            f"systemctl {' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}", code="systemctl-failed"
        )
    return done.stdout


def _show(unit, names):
    shown = _systemctl("show", unit, *(f"--property={name}" for name in names))
    return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)


class Supervisor:
    """Units `sglang-<instance>.service`, `sglang-<instance>-guard.service`, timers `sglang-<instance>-deadline.timer`
    and `sglang-<instance>-logs.timer`."""

    def __init__(self, *, instance, instance_dir, conf=None):
        self.instance_dir = instance_dir
        self.engine = f"sglang-{instance}.service"
        self.guard = f"sglang-{instance}-guard.service"
        self.deadline = f"sglang-{instance}-deadline"
        self.logs = f"sglang-{instance}-logs"

    def install(self, release):
        return self._install(os.path.join(self.instance_dir, "current", "engine.service"), self.engine)

    def install_guard(self, changed):
        done = [self._install(source, unit) for unit, source in self._guard_units().items()]
        _systemctl("start", f"{self.logs}.timer")
        return {
            "changed": any(found["changed"] for found in done),
            "reloaded": any(found["reloaded"] for found in done),
            "blind": [name for found in done for name in found["blind"]],
        }

    def _guard_units(self):
        """{unit: the file that it is a copy of}."""
        folder = os.path.join(self.instance_dir, "guard")
        return {
            self.guard: os.path.join(folder, "guard.service"),
            f"{self.logs}.service": os.path.join(folder, "logs.service"),
            f"{self.logs}.timer": os.path.join(folder, "logs.timer"),
        }

    def _install(self, source, unit):
        """Put the unit in place and enable it. A reload only where systemd holds another version of it (or of its
        drop-ins), and never over the heads of GPU containers. Returns {changed, reloaded, blind: [containers that lost
        their GPUs]}."""
        target = os.path.join(UNIT_DIR, unit)
        changed = not (os.path.exists(target) and filecmp.cmp(source, target, shallow=False))
        before = _show(unit, ("LoadState", "NeedDaemonReload"))
        if before["NeedDaemonReload"] == "yes" or (changed and before["LoadState"] == "loaded"):
            endangered = containers.reload_danger(self.instance_dir)["containers"]
            if endangered:
                raise VerbError(_danger_words(unit, endangered), code="gpu-containers", containers=endangered)
        if changed:
            with open(source, "rb") as file:
                durable.write_atomic(target, file.read())
        state = _show(unit, ("NeedDaemonReload", "UnitFileState"))
        reloaded = state["NeedDaemonReload"] == "yes"
        blind = []
        if reloaded:
            others = containers.gpu_containers(self.instance_dir)
            _systemctl("daemon-reload")
            blind = containers.blind(others)
        if state["UnitFileState"] not in _ENABLED:
            _systemctl("enable", "--quiet", "--no-reload", unit)  # by itself `enable` reloads as well
        return {"changed": changed, "reloaded": reloaded, "blind": blind}

    def start(self):
        _systemctl("reset-failed", self.engine, check=False)
        _systemctl("start", "--no-block", self.engine)

    def stop(self, timeout_s):
        if self.state()["state"] != "absent":
            _systemctl("stop", self.engine, timeout_s=timeout_s + 30.0)

    def state(self):
        facts = _show(self.engine, _SHOWN)
        pid = int(facts.get("MainPID", "0")) or None
        known = facts.get("LoadState") == "loaded"
        return {
            "state": _STATES.get(facts.get("ActiveState", ""), "failed") if known else "absent",
            "pid": pid,
            "started_at": processes.started_at(pid) if pid else None,
            "enabled": facts.get("UnitFileState") == "enabled",
            "stale": facts.get("NeedDaemonReload") == "yes",
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
            raise VerbError(f"the guard's timer could not be set: {done.stderr.strip()}", code="systemctl-failed")

    def disarm(self):
        _systemctl("stop", f"{self.deadline}.timer", check=False)

    def boot_id(self):
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()

    def inspect(self):
        """What systemd will really do with the units: [{unit, installed: path, wanted: path, same, enabled,
        overrides: [paths], stale (systemd holds another version), problem}]."""
        wanted = {self.engine: os.path.join(self.instance_dir, "current", "engine.service"), **self._guard_units()}
        return [self._inspect_one(unit, source) for unit, source in wanted.items()]

    def _inspect_one(self, unit, source):
        facts = _show(unit, _INSPECTED)
        installed = facts.get("FragmentPath") or os.path.join(UNIT_DIR, unit)
        present = os.path.isfile(installed) and os.path.isfile(source)
        problem = "" if facts["LoadState"] == "loaded" else f"systemd says it is {facts['LoadState']}"
        return {
            "unit": unit,
            "installed": installed,
            "wanted": source,
            "same": present and filecmp.cmp(source, installed, shallow=False),
            "enabled": facts.get("UnitFileState") in _ENABLED,
            "overrides": facts.get("DropInPaths", "").split(),
            "stale": facts.get("NeedDaemonReload") == "yes",
            "problem": problem,
        }


def _danger_words(unit, endangered):
    names = ", ".join(f"{c['name']} ({c['image']})" for c in endangered)
    return f"{unit} needs `systemctl daemon-reload`, which could take the GPUs away from running containers: {names}"
