"""`ops start`, `stop`, `restart`: the current release, no change of what it is."""

from ops.errors import ConfigError, OpsError
from ops.execute import transaction
from ops.flows.hosts import run_on
from ops.flows.ownership import owned
from ops.flows.report import failed, gate_summary
from ops.model.inventory import HostSpec
from ops.model.plan import Purpose
from ops.model.ports import Reporter
from ops.model.result import HostResult
from ops.model.state import profile_name
from ops.planner import rollback_plan, start_plan, stop_plan
from ops.run import Run


def control(spec: HostSpec, verb: str, reporter: Reporter, *, break_lock: bool = False) -> HostResult:
    """Do `start`, `stop` or `restart` on one host."""
    try:
        with run_on(spec, reporter) as run, owned(run, verb, break_lock=break_lock):
            release = run.facts["links"]["current"]
            if release is None:
                raise ConfigError("nothing is deployed here", hint="ops deploy --profile <profile>", host=spec.name)
            return _control(run, verb, release)
    except OpsError as error:
        return failed(spec, None, error)


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
    if (verb == "start" and running and run.facts["admitted"]) or (
        verb == "stop" and not running and not run.facts["processes"] and run.facts["guard"]["wanted"] == "stopped"
    ):
        return base.model_copy(update={"outcome": "unchanged", "changed": False, "message": f"{release}: already so"})
    purpose = Purpose.ROLLBACK if verb == "restart" else Purpose.CONTROL
    transaction(run, plans[verb], command=verb, purpose=purpose, release=release)
    gate = gate_summary(run.reports[-1]) if run.reports else None
    return base.model_copy(update={"gate": gate, "phases": run.seconds, "message": f"{release} {base.outcome}"})
