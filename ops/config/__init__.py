"""From files under `envs/` and OPS_… settings to models; every mistake at once, with file, line, key and value.

Bad input ends here, before any host is asked anything.
"""

from ops.config.inventory import default_host, hosts_of, load_inventory
from ops.config.profiles import (
    Resolved,
    load_nccl,
    load_profile,
    load_stack,
    profile_names,
    resolve_profile,
)
from ops.config.settings import Settings, find_project, load_settings, secret_values

__all__ = [
    "Resolved",
    "Settings",
    "default_host",
    "find_project",
    "hosts_of",
    "load_inventory",
    "load_nccl",
    "load_profile",
    "load_settings",
    "load_stack",
    "profile_names",
    "resolve_profile",
    "secret_values",
]
