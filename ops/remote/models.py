"""Model folders on the host: their configuration and digests. Weights are read once and remembered by size and time."""

import hashlib
import json
import os

from ops.remote import durable

_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
_read_here: "dict[str, dict]" = {}
"""What this agent read: before the first deploy the instance has no folder to keep it in."""


def describe(instance_dir, folder, weights, say=None):
    """{path, config, config_sha256, weights_sha256 (None unless `weights`)}, or None when there is no model there.

    `weights`: also the digest of the weight files, which costs one read of them all the first time; what is read is
    kept file by file, so that a call that was broken off goes on where it stopped. `say`: told of each file read.
    """
    path = os.path.join(folder, "config.json")
    if not os.path.isfile(path):
        return None
    return {
        "path": folder,
        "config": json.loads(durable.read_text(path)),
        "config_sha256": durable.sha256(path),
        "weights_sha256": _weights_digest(instance_dir, folder, say) if weights else None,
    }


def _weights_digest(instance_dir, folder, say):
    """One digest over names and contents of the weight files; None when there are none."""
    files = sorted(name for name in os.listdir(folder) if name.endswith(_WEIGHTS))
    if not files:
        return None
    cache = os.path.join(instance_dir, "digests.json")
    kept = json.loads(durable.read_text(cache) or "{}")
    known = {**kept, **_read_here}
    whole = hashlib.sha256()
    for number, name in enumerate(files, 1):
        path = os.path.join(folder, name)
        stat = os.stat(path)
        seen = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
        if known.get(path, {}).get("seen") != seen:
            if say is not None:
                say(f"reading {path} ({stat.st_size / 1e9:.1f} GB, {number} of {len(files)})")
            known[path] = _read_here[path] = {"seen": seen, "sha256": durable.sha256(path)}
        if known != kept and os.path.isdir(instance_dir):
            durable.write_atomic(cache, json.dumps(known, indent=1, sort_keys=True).encode())
            kept = dict(known)
        whole.update(f"{name} {known[path]['sha256']}\n".encode())
    return whole.hexdigest()
