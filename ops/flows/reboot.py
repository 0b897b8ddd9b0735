"""`ops host reboot`: take the host out of traffic, reboot it, prove that it came back as it was, let it in again."""

from ops.errors import ConfigError, OpsError
from ops.execute import transaction
from ops.flows.ensemble import refuse_alone
from ops.flows.hosts import run_on
from ops.flows.ownership import owned
from ops.flows.report import failed, gate_summary
from ops.model.inventory import HostSpec
from ops.model.plan import Plan, Purpose, Step
from ops.model.ports import Reporter
from ops.model.result import HostResult
from ops.model.state import profile_name
from ops.run import Run
from ops.steps.verify import held_by_ranks


def reboot(
    spec: HostSpec, reporter: Reporter, *, verify: bool, patience_s: float, break_lock: bool = False
) -> HostResult:
    """Reboot one host. Never raises an OpsError: the result says what happened.

    Args: verify: prove and admit afterwards; else the host stays out of traffic. patience_s: wall seconds until SSH
        must answer again.
    """
    try:
        refuse_alone(spec, None)
        with run_on(spec, reporter) as run, owned(run, "reboot", break_lock=break_lock):
            return _reboot(run, verify, patience_s)
    except OpsError as error:
        return failed(spec, None, error)


def _reboot(run: Run, verify: bool, patience_s: float) -> HostResult:
    spec, facts = run.host.spec, run.facts
    release = facts["links"]["current"]
    _require(run, verify)
    plan = reboot_plan(
        release if facts["guard"]["wanted"] == "running" else None,
        boot_id=facts["boot_id"],
        patience_s=patience_s,
        held=held_by_ranks(facts["processes"]) if verify else None,
        verify=verify,
    )
    transaction(run, plan, command="host reboot", purpose=Purpose.CONTROL, release=release)
    message = f"{release} serves again with the same environment, and takes traffic"
    return HostResult.on(
        spec,
        profile=profile_name(release),
        release=release,
        previous=release,
        outcome="rebooted",
        changed=True,
        message=message if verify else "rebooted; it takes no traffic",
        hint="" if verify else "ops verify, then ops start lets it in",
        gate=gate_summary(run.reports[-1]) if run.reports else None,
        phases=run.seconds,
    )


def _require(run: Run, verify: bool) -> None:
    spec, facts = run.host.spec, run.facts
    if facts["supervisor"] != "systemd":
        raise ConfigError(
            "without systemd a container cannot reboot itself",
            hint="restart it where you rent it (or `ops sandbox fault reboot`), then: ops verify, ops gate",
            host=spec.name,
        )
    if facts["links"]["current"] is None:
        raise ConfigError("nothing is deployed here", hint="ops deploy --profile <profile>", host=spec.name)
    if verify and facts["guard"]["wanted"] != "running":
        raise ConfigError(
            "it was stopped on purpose, so nothing would come back to be verified",
            hint="ops start first, or reboot without --verify",
            host=spec.name,
        )


def reboot_plan(
    release: str | None, *, boot_id: str, patience_s: float, held: dict[str, str] | None, verify: bool
) -> Plan:
    """Drain, reboot; and with `verify`: follow the load, prove, judge, admit. `release` None: nothing will run."""
    steps = [
        Step(kind="drain"),
        Step(kind="reboot", args={"boot_id": boot_id, "patience_s": patience_s, "release": release}),
    ]
    if verify and release is not None:
        steps += [
            Step(kind="start", args={"release": release}),  # runs already, so this only follows its load
            Step(kind="verify", args={"release": release, "held": held}),
            Step(kind="gate", args={"release": release, "subset": "rollback"}),
            Step(kind="admit", args={"release": release}),
        ]
    return Plan(steps=tuple(steps))
