"""`ops deploy`: from a profile's name to a release that serves, or the old state proven."""

from dataclasses import dataclass

from ops.errors import OpsError
from ops.execute import transaction
from ops.flows import preflight
from ops.flows.hosts import Project, run_on
from ops.flows.ownership import acquire
from ops.flows.report import failed, gate_summary
from ops.model.inventory import HostSpec
from ops.model.plan import Plan, Purpose
from ops.model.ports import Reporter
from ops.model.profile import Profile
from ops.model.release import Release
from ops.model.result import HostResult
from ops.planner import deploy_plan
from ops.run import Run, hashes


@dataclass(frozen=True)
class DeployOptions:
    """Attributes:
    dry_run: show the plan and end.
    break_lock: undo a dead run's pending release now instead of waiting for the guard.
    """

    dry_run: bool = False
    break_lock: bool = False
    message: str = ""


def deploy(
    project: Project, profile_name: str, spec: HostSpec, options: DeployOptions, reporter: Reporter
) -> HostResult:
    """Deploy one profile to one host. Never raises an OpsError: the result says what happened and what is true now."""
    try:
        profile = project.profile(profile_name)
        with run_on(spec, reporter) as run:
            supervisor = run.facts["supervisor"]
            release = project.release(profile, spec, supervisor)
            fallback = (
                project.release(project.profile(profile.fallback), spec, supervisor) if profile.fallback else None
            )
            return _deploy(run, profile, release, fallback, options)
    except OpsError as error:
        return failed(spec, profile_name, error)


def _deploy(
    run: Run, profile: Profile, release: Release, fallback: Release | None, options: DeployOptions
) -> HostResult:
    spec = run.host.spec
    models = {"target": spec.path(profile.engine.model_path)}
    if profile.speculation is not None:
        models["draft"] = spec.path(profile.speculation.draft_path)
    facts = run.observe(ports=[profile.engine.port], models=models, gpus=True)
    previous = facts["links"]["current"]
    base = HostResult(
        host=spec.name,
        instance=spec.instance,
        profile=profile.name,
        release=release.id,
        outcome="deployed",
        previous=previous,
        changed=True,
    )
    if serves(run, release):
        return base.model_copy(
            update={
                "outcome": "unchanged",
                "changed": False,
                "message": f"{release.id} serves already; nothing was done",
            }
        )
    verdicts = preflight.ask(profile, spec, facts)
    preflight.require(verdicts, spec.name)
    plan = deploy_plan(release.id, profile, fallback=fallback.id if fallback else None)
    if options.dry_run:
        return base.model_copy(
            update={"outcome": "planned", "changed": False, "details": {"plan": plan.model_dump(mode="json")["steps"]}}
        )
    run.releases = {r.id: r for r in (release, fallback) if r is not None}
    acquire(run, options.message or f"deploy {profile.name}", break_lock=options.break_lock)
    return perform(run, plan, release, base, command="deploy", purpose=Purpose.CANDIDATE)


def perform(run: Run, plan: Plan, release: Release, base: HostResult, *, command: str, purpose: Purpose) -> HostResult:
    """Execute a switching plan and complete its result."""
    transaction(run, plan, command=command, purpose=purpose, release=release.id)
    report = run.reports[-1]
    return base.model_copy(
        update={
            "gate": gate_summary(report),
            "phases": run.seconds,
            "message": f"{release.id} serves and takes traffic",
        }
    )


def serves(run: Run, release: Release) -> bool:
    """True when exactly this release runs, was confirmed, takes traffic, and no file of it drifted."""
    facts = run.facts
    links, admitted = facts["links"], facts["admitted"] or {}
    if not (links["current"] == links["last-good"] == release.id and links["pending"] is None):
        return False
    if facts["engine"]["state"] != "running" or admitted.get("release") != release.id:
        return False
    if not any(process["release"] == release.id for process in facts["processes"]):
        return False
    drifted = run.call("store.verify", release=release.id, hashes=hashes(release.manifest))["drifted"]
    return not drifted
