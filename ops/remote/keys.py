"""The engine's keys, read where they are used: they never leave the host, and no client has to know them."""

import json
import os

SECRETS_FILE = "secrets.yaml"


def reference(instance_dir, *flags):
    """Where the current release's value of the first of `flags` (api-key, admin-api-key) that it has lies."""
    return {"file": os.path.join(instance_dir, "current", SECRETS_FILE), "flags": list(flags)}


def read(key):
    """A key given as such, or looked up by reference in the engine's own --config file; None when there is none."""
    if not isinstance(key, dict):
        return key
    try:
        with open(key["file"], encoding="utf-8") as file:
            known = {flag: json.loads(value) for flag, _, value in (line.partition(": ") for line in file)}
    except FileNotFoundError:
        return None
    return next((known[flag] for flag in key["flags"] if flag in known), None)
