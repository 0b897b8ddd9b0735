"""Model folders on the host: their configuration and digests. Weights are read once and remembered by size and time."""

import hashlib
import json
import os

from ops.remote import store

_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


def describe(instance_dir, folder, weights):
    """{path, config, config_sha256, weights_sha256 (None unless `weights`)}, or None when there is no model there.

    `weights`: also the digest of the weight files, which costs one read of them all the first time.
    """
    path = os.path.join(folder, "config.json")
    if not os.path.isfile(path):
        return None
    return {
        "path": folder,
        "config": json.loads(store.read_text(path)),
        "config_sha256": store.sha256(path),
        "weights_sha256": _weights_digest(instance_dir, folder) if weights else None,
    }


def _weights_digest(instance_dir, folder):
    """One digest over names and contents of the weight files; None when there are none."""
    files = sorted(name for name in os.listdir(folder) if name.endswith(_WEIGHTS))
    if not files:
        return None
    cache = os.path.join(instance_dir, "digests.json")
    known = json.loads(store.read_text(cache) or "{}")
    fresh = dict(known)
    whole = hashlib.sha256()
    for name in files:
        path = os.path.join(folder, name)
        stat = os.stat(path)
        seen = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
        if fresh.get(path, {}).get("seen") != seen:
            fresh[path] = {"seen": seen, "sha256": store.sha256(path)}
        whole.update(f"{name} {fresh[path]['sha256']}\n".encode())
    if fresh != known and os.path.isdir(instance_dir):
        store.write_atomic(cache, json.dumps(fresh, indent=1, sort_keys=True).encode())
    return whole.hexdigest()
