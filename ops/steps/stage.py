"""Put the release folder on the host, and the fallback's beside it. The old server goes on serving."""

import base64
import hashlib
from typing import Any

from ops.errors import StepFailed
from ops.model.release import Release
from ops.render.guard import guard_files
from ops.run import Run


def do(run: Run, *, release: str, fallback: str | None) -> dict[str, Any]:
    evidence: dict[str, Any] = {"release": put(run, run.releases[release])}
    if fallback is not None:
        evidence["fallback"] = put(run, run.releases[fallback])
        run.call("store.set_link", link="baseline", release=fallback)
    elif not run.profile(release).speculative:
        run.call("store.set_link", link="baseline", release=release)
    supervisor = run.facts["supervisor"]
    files = guard_files(run.host.spec, run.profile(release), supervisor)
    evidence["guard"] = run.call(
        "guard.install", files=[_wire(f.name, f.content, f.mode) for f in files], supervisor=run.supervisor
    )
    return evidence


def put(run: Run, release: Release) -> dict[str, Any]:
    """Upload one release and check what arrived."""
    run_as = release.manifest["profile"]["run_as"]
    # What only its owner may read must be the engine's own where the engine is not root.
    files = [_wire(f.name, f.content, f.mode, run_as if f.mode == 0o600 else None) for f in release.files]
    result: dict[str, Any] = run.call("store.stage", release=release.id, files=files, wait_s=60.0)
    hashes = {file["name"]: file["sha256"] for file in files}
    drifted = run.call("store.verify", release=release.id, hashes=hashes)["drifted"]
    if drifted:
        raise StepFailed(f"{', '.join(drifted)} of {release.id} differ on the host right after the upload")
    return {**result, "id": release.id}


def _wire(name: str, content: bytes, mode: int, owner: str | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "mode": mode,
        "owner": owner,
        "content": base64.b64encode(content).decode(),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
