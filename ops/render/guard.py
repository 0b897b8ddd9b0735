"""The host's guard: the same script everywhere, its settings, and the supervisor's part. Pure."""

import math
from typing import Any

from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.release import ReleaseFile
from ops.render.files import fill, template_folder

CRASH_LIMIT = 3
"""Unexpected exits without a load timeout's worth of serving between them, then the guard falls back."""
LOG_MAX_KIB = 100 * 1024
SYSTEMD = {
    "guard.service": "guard.service.j2",
    "logs.service": "logs.service.j2",
    "logs.timer": "logs.timer.j2",
}
SUPERVISORD = {"supervisor.conf": "guard.supervisor.conf.j2"}


def guard_files(host: HostSpec, profile: Profile, supervisor: str) -> tuple[ReleaseFile, ...]:
    """What lies in `<instance>/guard/` on a host, for the host's supervisor (systemd or supervisord)."""
    systemd = supervisor == "systemd"
    values: dict[str, Any] = {
        "host": host,
        "dir": host.instance_dir,
        "supervisor": supervisor,
        "supervisorctl": host.supervisorctl or "supervisorctl",
        "supervisord_conf": host.supervisor_conf or "/etc/supervisor/supervisord.conf",
        "engine": f"sglang-{host.instance}.service" if systemd else f"engine-{host.instance}",
        "load_timeout_s": max(1, math.ceil(profile.timeouts.load_timeout_s / host.time_scale)),
        "crash_limit": CRASH_LIMIT,
        "log_max_kib": LOG_MAX_KIB,
        "run_as": profile.run_as or "",
    }
    script = (template_folder() / "guard.sh").read_bytes()
    templates = SYSTEMD if systemd else SUPERVISORD
    return (
        ReleaseFile("guard.sh", script, 0o755),
        ReleaseFile("guard.conf", fill("guard.conf.j2", values), 0o644),
        *(ReleaseFile(name, fill(template, values), 0o644) for name, template in templates.items()),
    )
