"""`ops rollback`: back to an earlier release that was good, or to the baseline."""

from ops.errors import ConfigError, OpsError
from ops.flows.deploy import doing
from ops.flows.ensemble import refuse_alone, same_release_here, together, transact
from ops.flows.hosts import run_on
from ops.flows.ownership import owned
from ops.flows.report import failed, gate_summary
from ops.model.inventory import HostSpec
from ops.model.plan import Purpose
from ops.model.ports import Peers, Reporter
from ops.model.result import HostResult
from ops.model.state import Facts, Links, profile_name
from ops.planner import rollback_plan
from ops.run import Run


def rollback(
    spec: HostSpec, to: str | None, reporter: Reporter, *, break_lock: bool = False, peers: Peers | None = None
) -> HostResult:
    """Go back on one host. `to`: a release id, `baseline`, or None for the last good release other than the current
    one. `peers`: the other hosts, where one model is served over several: then rank 0 chooses for all."""
    message = f"rollback to {to or 'the last good release'}"
    try:
        refuse_alone(spec, peers)
        with run_on(spec, reporter, peers) as run, owned(run, message, break_lock=break_lock):
            target = choose(run.facts, to) if run.leader == spec.name else ""
            return _roll(run, _agreed(run, target) if peers is not None else target)
    except OpsError as error:
        return failed(spec, None, error)


def _agreed(run: Run, target: str) -> str:
    """What the members go back to together: the leader's choice, in this host's own release of it."""
    here = together(_manifest(run, target)) if target else ""
    chosen = run.meet("target", here)[run.leader]
    if not chosen:
        raise ConfigError(
            "the release that rank 0 would go back to served alone, not over several hosts; nothing was touched",
            hint="deploy a profile to the group; or take ops_nodes from the inventory and use --host",
            host=run.host.name,
        )
    found = target or same_release_here(run, chosen)
    run.meet("target is here")
    return found


def _roll(run: Run, target: str) -> HostResult:
    spec = run.host.spec
    run.facts["manifests"].update({target: _manifest(run, target)})
    base = HostResult.on(
        spec,
        profile=profile_name(target),
        release=target,
        outcome="rolled-back",
        previous=run.facts["links"]["current"],
        changed=True,
    )
    plan = rollback_plan(target, run.profile(target))
    transact(run, plan, command="rollback", purpose=Purpose.ROLLBACK, release=target)
    return base.model_copy(
        update={
            "gate": gate_summary(run.reports[-1]),
            "phases": run.seconds,
            "message": f"{target} {doing(run.manifest(target))}",
        }
    )


def _manifest(run: Run, release: str) -> object:
    return run.call("store.manifest", release=release)["manifest"]


def choose(facts: Facts, to: str | None) -> str:
    """The release to go back to. Raises: ConfigError when there is none."""
    links = Links.of(facts)
    present = [release["id"] for release in facts["releases"]]
    if to == "baseline":
        if links.baseline is None:
            raise ConfigError("no baseline release is on this host", hint="ops deploy --profile baseline")
        return links.baseline
    if to is not None:
        if to not in present:
            raise ConfigError(
                f"release {to} is not on this host; there are: {', '.join(present) or 'none'}", hint="ops releases"
            )
        return to
    good = [e["release"] for e in facts["journal"] if e.get("event") in ("committed", "confirmed-late")]
    for release in reversed(good):
        if release != links.current and release in present:
            return str(release)
    if links.last_good and links.last_good != links.current:
        return links.last_good
    if links.baseline and links.baseline != links.current:
        return links.baseline
    raise ConfigError("there is no earlier good release on this host", hint="ops releases; ops rollback --to <release>")
