"""The release's software and that of everything we might go back to: there, proven, with code for these GPUs.

A rollback to an image that is not on the host fails in the very moment it is needed.
"""

from collections.abc import Mapping
from typing import Any

from ops.checks import Check, Question, Verdict
from ops.model.inventory import HostSpec
from ops.model.profile import Profile
from ops.model.state import Facts

ROLES = {"fallback": "the fallback", "last-good": "the last good release", "baseline": "the baseline"}


def judge(ask: Question, facts: Facts, profile: Profile, spec: HostSpec) -> Verdict:
    seen = facts.get("stack")
    if seen is None:
        return ask.inconclusive("nobody looked for the software", "run the command again; this is a bug in ops")
    software: Mapping[str, Mapping[str, Any]] = seen["software"]
    candidate = software.get("candidate")
    if seen["problem"]:
        return ask.failed(seen["problem"], "start Docker on the host, or use runtime native")
    if candidate is None:
        return ask.skipped("the release names no software")
    missing = _release(candidate, spec)
    if missing:
        return ask.failed(*missing, software=dict(candidate))
    for role, words in ROLES.items():
        back = software.get(role)
        problem = _back(back, words, spec, proven=role == "fallback") if back is not None else None
        if problem:
            return ask.failed(*problem, software=dict(back or {}))
    return ask.passed(_shown(candidate))


def _release(entry: Mapping[str, Any], spec: HostSpec) -> tuple[str, str] | None:
    name = entry.get("stack")
    if entry["proof"] is not None and entry["proof"]["outcome"] != "pass":
        return f"{_shown(entry)} was proven and is not what is locked", f"build or install stack {name} again"
    if entry["present"]:
        return None
    if entry["kind"] == "image" and entry["reference"]:
        return None  # staging pulls and proves it while the old server goes on
    if entry["kind"] == "image":
        return (
            f"{_shown(entry)} is not on this host, and no registry is known to hold it",
            f"ops image push {name} --to {spec.name}",
        )
    if entry["kind"] == "venv":
        return f"{_shown(entry)} is not installed on this host", f"ops host install --stack {name} --host {spec.name}"
    return f"there is no Python at {entry['path']}", "set ops_engine_python in the inventory to the engine's own Python"


def _back(entry: Mapping[str, Any], words: str, spec: HostSpec, *, proven: bool) -> tuple[str, str] | None:
    name = entry.get("stack")
    remedy = (
        f"ops image push {name} --to {spec.name}, or ops image verify {name} --host {spec.name} where a registry has it"
        if entry["kind"] == "image"
        else f"ops host install --stack {name} --host {spec.name}"
    )
    if not entry["present"]:
        return f"{_shown(entry)} of {words} is not on this host: a rollback would fail", remedy
    if proven and entry["kind"] != "python" and (entry["proof"] or {}).get("outcome") != "pass":
        return f"{_shown(entry)} of {words} is on this host, but was never proven there", remedy
    return None


def _shown(entry: Mapping[str, Any]) -> str:
    if entry["kind"] == "image":
        return f"image {entry['id'].rpartition('sha256:')[2][:12]}"
    return f"environment {entry['path']}"


CHECK = Check("software", "Is the software there, and that of what a rollback needs?", 45, judge)
