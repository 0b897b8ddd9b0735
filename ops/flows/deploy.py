"""`ops deploy`: from a profile's name to a release that serves, or the old state proven."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.errors import ConfigError, OpsError
from ops.flows import gating, preflight, software
from ops.flows.ensemble import refuse_alone, transact
from ops.flows.hosts import Project, run_on
from ops.flows.ownership import owned, refuse_if_held, renew
from ops.flows.report import failed, gate_summary
from ops.model.inventory import HostSpec
from ops.model.plan import Purpose
from ops.model.ports import Peers, Reporter
from ops.model.profile import Profile
from ops.model.release import Release, follows
from ops.model.result import HostResult
from ops.planner import deploy_plan
from ops.run import Run


@dataclass(frozen=True)
class DeployOptions:
    """How to deploy.

    Attributes:
        dry_run: check the host, show the plan, touch nothing.
        break_lock: undo a dead run's pending release now instead of waiting for the guard.
        message: why; shown by the lock.
        assume_baseline: a `baseline.json` to judge speed against, instead of this host's own measurement.
    """

    dry_run: bool = False
    break_lock: bool = False
    message: str = ""
    assume_baseline: Path | None = None


@dataclass(frozen=True)
class _Candidate:
    profile: Profile
    release: Release
    fallback: Release | None


def deploy(
    project: Project,
    profile: Profile,
    spec: HostSpec,
    options: DeployOptions,
    reporter: Reporter,
    peers: Peers | None = None,
) -> HostResult:
    """Deploy one profile to one host. Never raises an OpsError: the result says what happened and what is true now.

    Args: peers: the other hosts, where one model is served over several.
    """
    try:
        refuse_alone(spec, peers)
        with run_on(spec, reporter, peers) as run:
            supervisor = run.facts["supervisor"]
            release = project.release(profile, spec, supervisor)
            fallback = (
                project.release(project.profile(profile.fallback), spec, supervisor) if profile.fallback else None
            )
            return _deploy(run, _Candidate(profile, release, fallback), options)
    except OpsError as error:
        return failed(spec, profile.name, error)


def _deploy(run: Run, candidate: _Candidate, options: DeployOptions) -> HostResult:
    profile, release, fallback = candidate.profile, candidate.release, candidate.fallback
    if not options.dry_run:
        refuse_if_held(run, options.break_lock)
    run.releases = {r.id: r for r in (release, fallback) if r is not None}
    facts = run.observe(
        ports=[profile.engine.port],
        models=gating.models(run, profile),
        gpus=True,
        software=software.wanted(release, fallback),
    )
    result = HostResult.on(
        run.host.spec,
        profile=profile.name,
        release=release.id,
        outcome="deployed",
        previous=facts["links"]["current"],
        changed=True,
    )
    if run.everywhere("serves", serves(run, release)):
        message = f"{release.id} serves already; nothing was done"
        return result.model_copy(update={"outcome": "unchanged", "changed": False, "message": message})
    verdicts = preflight.ask(profile, run.host.spec, {**facts, "candidate": release.manifest})
    for warning in preflight.warnings(verdicts):
        run.say(f"warning: {warning.name}: {warning.message}")
    preflight.require(verdicts, run.host.name)
    run.meet("preflight passed")
    plan = deploy_plan(release.id, profile, fallback=fallback.id if fallback else None)
    if options.dry_run:
        steps = plan.model_dump(mode="json")["steps"]
        return result.model_copy(update={"outcome": "planned", "changed": False, "details": {"plan": steps}})
    run.assumed_baseline = gating.read_record(options.assume_baseline)
    message = options.message or f"deploy {profile.name}"
    with owned(run, message, break_lock=options.break_lock):
        run.meet("owned")
        if fallback is not None:
            _measure_baseline(run, candidate, fallback, message)
        transact(run, plan, command="deploy", purpose=Purpose.CANDIDATE, release=release.id)
    return result.model_copy(
        update={
            "gate": gate_summary(run.reports[-1]),
            "phases": run.seconds,
            "message": f"{release.id} {doing(release.manifest)}",
        }
    )


def _measure_baseline(run: Run, candidate: _Candidate, fallback: Release, message: str) -> None:
    """Deploy and measure the yardstick first, as an ordinary confirmed deploy, when this host has no valid one."""
    if {"speed", "agreement"} <= candidate.profile.gates.skip.keys() or run.assumed_baseline is not None:
        return
    profile = run.profile(fallback.id)
    run.observe(models=gating.models(run, profile), gpus=True)
    here = gating.baseline_problem(run, fallback.id, candidate.profile.traffic.concurrency)
    problem = run.meet("baseline", here)[run.leader]
    if not problem:
        return
    if profile.traffic.concurrency != candidate.profile.traffic.concurrency:
        raise ConfigError(
            f"{profile.name} is measured at concurrency {list(profile.traffic.concurrency)}, "
            f"{candidate.profile.name} needs {list(candidate.profile.traffic.concurrency)}",
            hint="give both profiles the same traffic.concurrency",
        )
    run.say(f"{problem}: deploying and measuring {profile.name} first")
    plan = deploy_plan(fallback.id, profile, fallback=None)
    transact(run, plan, command="deploy", purpose=Purpose.BASELINE, release=fallback.id)
    renew(run, message)


def doing(manifest: Mapping[str, Any]) -> str:
    """What a good release does on its host."""
    return "serves with the other hosts" if follows(manifest) else "serves and takes traffic"


def serves(run: Run, release: Release) -> bool:
    """True when exactly this release runs, was confirmed, takes traffic, and nothing of it drifted."""
    facts = run.facts
    links, admitted = facts["links"], facts["admitted"] or {}
    if not (links["current"] == links["last-good"] == release.id and links["pending"] is None):
        return False
    if facts["engine"]["state"] != "running":
        return False
    if admitted.get("release") != release.id and not follows(release.manifest):
        return False
    if facts["manifests"][release.id] != json.loads(release.file("manifest.json").content):
        return False  # same command line, other gates or pins: they have to be asked
    if not any(process["release"] == release.id for process in facts["processes"]):
        return False
    # By what is rendered now, not by the manifest, whose digests leave secrets out: a rotated key has to be served.
    wanted = {file.name: hashlib.sha256(file.content).hexdigest() for file in release.files}
    return not run.call("store.verify", release=release.id, hashes=wanted)["drifted"]
