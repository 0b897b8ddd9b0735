"""The engine's keys, read where they are used: they never leave the host, and no client has to know them."""

import json
import os

SECRETS_FILE = "secrets.yaml"
_SHORTEST = 6
"""Characters; hiding every occurrence of a shorter value would garble what it happens to be part of."""


def reference(instance_dir, *flags):
    """Where the current release's value of the first of `flags` (api-key, admin-api-key) that it has lies."""
    return {"file": os.path.join(instance_dir, "current", SECRETS_FILE), "flags": list(flags)}


def secret_values(instance_dir):
    """Every secret of the releases that links name, as bytes inside a JSON string: for hiding."""
    found = set()
    for link in ("current", "last-good", "baseline", "pending"):
        folder = os.path.join(instance_dir, link)
        names = _secret_names(os.path.join(folder, "manifest.json"))
        if not names:
            continue
        for path, separator in ((os.path.join(folder, SECRETS_FILE), ": "), (os.path.join(folder, "engine.env"), "=")):
            for name, value in _pairs(path, separator):
                if separator == ": " or name in names:
                    found.add(json.loads(value) if separator == ": " else value)
    return {json.dumps(value)[1:-1].encode() for value in found if len(value) >= _SHORTEST}


def _secret_names(manifest):
    try:
        with open(manifest, encoding="utf-8") as file:
            return json.load(file).get("secrets", [])
    except (FileNotFoundError, NotADirectoryError):
        return []


def _pairs(path, separator):
    try:
        with open(path, encoding="utf-8") as file:
            for line in file.read().splitlines():
                name, found, value = line.partition(separator)
                if found:
                    yield name, value
    except FileNotFoundError:
        return


def read(key):
    """A key given as such, or looked up by reference in the engine's own --config file; None when there is none."""
    if not isinstance(key, dict):
        return key
    known = {flag: json.loads(value) for flag, value in _pairs(key["file"], ": ")}
    return next((known[flag] for flag in key["flags"] if flag in known), None)
