"""What keeps the engine alive. One small module each (`supervisord`, `systemd`); nothing else knows which.

A supervisor is described by {kind, instance, instance_dir, conf (path of supervisord.conf)} and offers:
`install(release)`, `install_guard(changed names)`, `start()`, `stop(timeout_s)`, `state()`, `arm(deadline_s)`,
`disarm()`, `boot_id()`, `inspect()`. `state()` is {state: running|starting|stopped|failed|absent, pid, started_at,
enabled, detail}.
"""

import importlib
import os

KINDS = ("systemd", "supervisord")


def detect():
    """The kind this host has: systemd runs exactly where /run/systemd/system exists (sd_booted(3))."""
    return "systemd" if os.path.isdir("/run/systemd/system") else "supervisord"


def get(description):
    """The adapter for `description`; kind None means: find out."""
    kind = description.get("kind") or detect()
    if kind not in KINDS:
        raise ValueError(f"no such supervisor: {kind}")
    module = importlib.import_module(f"ops.remote.{kind}")
    return module.Supervisor(**{key: value for key, value in description.items() if key != "kind"})
