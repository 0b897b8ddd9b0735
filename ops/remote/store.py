"""The release store: content-addressed folders and the links that name them.

Invariant: a folder under `releases/` without a leading dot is complete, and a link is always whole (both come by
rename).
"""

import base64
import json
import os
import shutil

from ops.remote import durable, reserve
from ops.remote.refusal import VerbError

LINKS = ("current", "last-good", "baseline", "pending")


def prepare(emit, *, instance_dir):
    """Make the instance's folders; refuses a root that is not ours to write."""
    for name in ("releases", "logs", "guard"):
        os.makedirs(os.path.join(instance_dir, name), mode=0o755, exist_ok=True)
    return {}


def stage(emit, *, instance_dir, release, files):
    """Put a release folder in place. `files`: [{name, mode, content (base64), sha256, owner}].

    Returns {"changed", "repaired": [names]}. A folder that is there already is checked, and files that drifted are
    replaced.
    """
    prepare(emit, instance_dir=instance_dir)
    reserve.keep(instance_dir)
    folder = os.path.join(instance_dir, "releases", release)
    if os.path.isdir(folder):
        drifted = [f for f in files if not _same(folder, f)]
        for file in drifted:
            durable.write_atomic(
                os.path.join(folder, file["name"]), base64.b64decode(file["content"]), file["mode"], file.get("owner")
            )
        return {"changed": bool(drifted), "repaired": [f["name"] for f in drifted]}
    temporary = os.path.join(instance_dir, "releases", f".{release}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    os.mkdir(temporary, 0o755)
    try:
        for file in files:
            durable.write_atomic(
                os.path.join(temporary, file["name"]),
                base64.b64decode(file["content"]),
                file["mode"],
                file.get("owner"),
            )
            if not _same(temporary, file):
                raise VerbError(
                    f"{file['name']} of {release} arrived with other contents than were sent", code="arrived-changed"
                )
        os.rename(temporary, folder)
    except (OSError, VerbError):
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    durable.fsync_dir(os.path.dirname(folder))
    return {"changed": True, "repaired": []}


def _same(folder, file):
    path = os.path.join(folder, file["name"])
    if not os.path.isfile(path):
        return False
    found = os.stat(path)
    if file.get("owner") and found.st_uid != durable.user_ids(file["owner"])[0]:
        return False
    return durable.sha256(path) == file["sha256"] and found.st_mode & 0o777 == file["mode"]


def verify(emit, *, instance_dir, release, hashes):
    """Compare a release folder with `hashes` ({name: sha256}); returns {"drifted": [names]}."""
    folder = os.path.join(instance_dir, "releases", release)
    drifted = []
    for name, expected in sorted(hashes.items()):
        path = os.path.join(folder, name)
        if not os.path.isfile(path) or durable.sha256(path) != expected:
            drifted.append(name)
    return {"drifted": drifted}


def manifest(emit, *, instance_dir, release):
    """The manifest of a release on the host: {"manifest": document or None}."""
    text = durable.read_text(os.path.join(instance_dir, "releases", release, "manifest.json"))
    return {"manifest": None if text is None else json.loads(text)}


def remembered(emit, *, instance_dir):
    """What gates learned on this host: {"baseline": text of baseline.json or None, "expectations": {}}."""
    expectations = durable.read_text(os.path.join(instance_dir, "expectations.json"))
    return {
        "baseline": durable.read_text(os.path.join(instance_dir, "baseline.json")),
        "expectations": json.loads(expectations) if expectations else {},
    }


def remember(emit, *, instance_dir, baseline, expectations):
    """Keep a baseline measurement (text; None: keep the old one) and add expectations."""
    if baseline is not None:
        durable.write_atomic(os.path.join(instance_dir, "baseline.json"), baseline.encode())
    if expectations:
        known = remembered(emit, instance_dir=instance_dir)["expectations"]
        text = json.dumps({**known, **expectations}, indent=1, sort_keys=True)
        durable.write_atomic(os.path.join(instance_dir, "expectations.json"), text.encode())
    return {}


def links(instance_dir):
    """{link: release id or None} for the four links."""
    found: dict[str, "str | None"] = {}
    for name in LINKS:
        try:
            found[name] = os.path.basename(os.readlink(os.path.join(instance_dir, name)))
        except (FileNotFoundError, NotADirectoryError):
            found[name] = None
    return found


def swap(instance_dir, link, release):
    """Point `link` to `release` by rename; `release` None removes the link."""
    path = os.path.join(instance_dir, link)
    if release is None:
        if os.path.lexists(path):
            os.unlink(path)
    else:
        if not os.path.isdir(os.path.join(instance_dir, "releases", release)):
            raise VerbError(f"release {release} is not on the host", code="no-release")
        temporary = os.path.join(instance_dir, f".{link}.{os.getpid()}")
        if os.path.lexists(temporary):
            os.unlink(temporary)
        os.symlink(os.path.join("releases", release), temporary)
        os.rename(temporary, path)
    durable.fsync_dir(instance_dir)


def set_link(emit, *, instance_dir, link, release):
    """Verb form of `swap`, for the links that no other verb owns (`baseline`)."""
    swap(instance_dir, link, release)
    return {}


def releases(instance_dir):
    """[{id, staged_at (epoch s)}], oldest first."""
    folder = os.path.join(instance_dir, "releases")
    if not os.path.isdir(folder):
        return []
    found = [
        {"id": name, "staged_at": os.stat(os.path.join(folder, name)).st_mtime}
        for name in os.listdir(folder)
        if not name.startswith(".")
    ]
    return sorted(found, key=lambda r: (r["staged_at"], r["id"]))


def prune(emit, *, instance_dir, keep, good=()):
    """Remove releases beyond `keep`: those that were never good first, then the oldest. Never one that a link names,
    nor the one that a rollback would choose. `good`: releases that passed their gate, the latest last.

    Returns {"removed": [ids]}.
    """
    named = links(instance_dir)
    kept = {r for r in named.values() if r}
    present = [r["id"] for r in releases(instance_dir)]
    kept.update([r for r in good if r in present and r != named["current"]][-1:])
    free = sorted((r for r in present if r not in kept), key=lambda r: r in good)
    surplus = len(kept) + len(free) - keep
    removed = free[: max(0, min(surplus, len(free)))]
    for release in removed:
        shutil.rmtree(os.path.join(instance_dir, "releases", release))
        for suffix in ("", ".1"):
            log = os.path.join(instance_dir, "logs", f"{release}.log{suffix}")
            if os.path.exists(log):
                os.unlink(log)
    for name in os.listdir(os.path.join(instance_dir, "releases")):
        if name.startswith("."):  # half an upload of a client that died
            shutil.rmtree(os.path.join(instance_dir, "releases", name))
    return {"removed": removed}
