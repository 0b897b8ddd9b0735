"""Put the release folder on the host with the image it starts from, and the fallback's folder beside it. The old server
goes on serving."""

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from ops.errors import StepFailed
from ops.model.release import Release
from ops.render.guard import guard_files
from ops.run import Run
from ops.stacks import proof

FETCH_S = 3600.0
"""An image of 11 GB over 50 Mbit/s takes half an hour."""
PROVE_S = 1800.0
"""Every file of an image is read: 11 GB take 53 s from a warm disk with 2 cores, a cold one longer."""


def do(run: Run, *, release: str, fallback: str | None) -> dict[str, Any]:
    software = have(run, run.releases[release].manifest["software"])
    evidence: dict[str, Any] = {"release": put(run, run.releases[release]), "software": software}
    if fallback is not None:
        evidence["fallback"] = put(run, run.releases[fallback])
        run.call("store.set_link", link="baseline", release=fallback)
    supervisor = run.facts["supervisor"]
    files = guard_files(run.host.spec, run.profile(release), supervisor)
    evidence["guard"] = run.call(
        "guard.install", files=[_wire(f.name, f.content, f.mode) for f in files], supervisor=run.supervisor
    )
    return evidence


def have(run: Run, software: Mapping[str, Any]) -> dict[str, Any]:
    """Bring the release's image here and prove it from the inside, once for each image; an environment is there."""
    if software["kind"] == "python" or not software["lock"]:
        return {"kind": software["kind"]}
    found: dict[str, Any] = {"kind": software["kind"]}
    if software["kind"] == "image":
        found |= run.host.call(
            "stack.fetch",
            software=software,
            timeout_s=FETCH_S,
            wait_s=FETCH_S + 60.0,
            on_event=lambda event: run.say(event["say"]),
        )
    known = run.call("stack.proof", software=software)["proof"]
    if known is not None and known["outcome"] == "pass":
        return {**found, "proven": known["at"]}
    run.say(f"proving {software['kind']} {proof.shown(software)} from the inside")
    request = proof.self_request(software, deep=True)
    answer = run.host.call("stack.prove", software=software, request=request, timeout_s=PROVE_S, wait_s=PROVE_S + 60.0)
    verdict = proof.self_verdict(answer, deep=True)
    document = {
        "outcome": verdict.outcome.value,
        "lock": software["lock"],
        "verdicts": [verdict.model_dump(mode="json")],
    }
    run.call("stack.remember", software=software, proof=document)
    if not verdict.passed:
        raise StepFailed(
            f"{software['kind']} {proof.shown(software)} is not what is locked: {verdict.message}",
            hint=verdict.remedy,
            host=run.host.name,
        )
    return {**found, "proven": True}


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
