"""`ops start`, `stop`, `restart`: the current release, no change of what it is."""

from ops.errors import ConfigError, OpsError
from ops.flows.ensemble import refuse_alone, require_together, transact
from ops.flows.hosts import run_on
from ops.flows.ownership import owned
from ops.flows.report import failed, gate_summary
from ops.model.inventory import HostSpec
from ops.model.plan import Purpose
from ops.model.ports import Peers, Reporter
from ops.model.release import follows
from ops.model.result import HostResult
from ops.model.state import profile_name
from ops.planner import rollback_plan, start_plan, stop_plan
from ops.run import Run


def control(
    spec: HostSpec, verb: str, reporter: Reporter, *, break_lock: bool = False, peers: Peers | None = None
) -> HostResult:
    """Do `start`, `stop` or `restart` on one host. `peers`: the other hosts, where one model is served over several."""
    try:
        refuse_alone(spec, peers)
        with run_on(spec, reporter, peers) as run, owned(run, verb, break_lock=break_lock):
            release = run.facts["links"]["current"]
            if release is None:
                raise ConfigError("nothing is deployed here", hint="ops deploy --profile <profile>", host=spec.name)
            return _control(run, verb, release)
    except OpsError as error:
        return failed(spec, None, error)


def _some_run(run: Run, running: bool) -> bool:
    """Ranks that run wait for nobody: where only some do, all have to begin anew."""
    return not run.everywhere("none runs", not running)


def _control(run: Run, verb: str, release: str) -> HostResult:
    spec = run.host.spec
    running = run.facts["engine"]["state"] in ("running", "starting")
    plans = {
        "start": start_plan(release),
        "stop": stop_plan(),
        # The host is armed for it: a client that dies between stop and start leaves no host without its server.
        "restart": rollback_plan(release, run.profile(release)),
    }
    base = HostResult.on(
        spec,
        profile=profile_name(release),
        release=release,
        previous=release,
        outcome={"start": "started", "stop": "stopped", "restart": "restarted"}[verb],
        changed=True,
    )
    takes_traffic = run.facts["admitted"] or follows(run.manifest(release))
    so = (verb == "start" and running and takes_traffic) or (
        verb == "stop" and not running and not run.facts["processes"] and run.facts["guard"]["wanted"] == "stopped"
    )
    if run.everywhere("already so", bool(so)):
        return base.model_copy(update={"outcome": "unchanged", "changed": False, "message": f"{release}: already so"})
    anew = verb == "restart" or (verb == "start" and run.peers is not None and _some_run(run, running))
    if verb != "stop":
        require_together(run, release)
    purpose = Purpose.ROLLBACK if anew else Purpose.CONTROL
    transact(run, plans["restart" if anew else verb], command=verb, purpose=purpose, release=release)
    gate = gate_summary(run.reports[-1]) if run.reports else None
    return base.model_copy(update={"gate": gate, "phases": run.seconds, "message": f"{release} {base.outcome}"})
