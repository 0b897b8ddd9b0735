"""Turn errors and gate reports into results."""

from typing import Any

from ops.errors import Exit, OpsError
from ops.model.gate import GateReport
from ops.model.inventory import HostSpec
from ops.model.result import HostResult

_OUTCOMES = {
    Exit.BUG: "bug",
    Exit.REFUSED: "refused",
    Exit.ROLLED_BACK: "rolled-back",
    Exit.UNSAFE: "unsafe",
    Exit.INTERRUPTED: "interrupted",
}


def failed(spec: HostSpec, profile: str | None, error: OpsError) -> HostResult:
    """The result of a run that ended in `error`.

    The transaction maps every error to what is true of the host. One that carries no such code came before it: nothing
    was touched.
    """
    code = error.exit_code if error.exit_code is not Exit.BUG else Exit.REFUSED
    return HostResult.on(
        spec,
        profile=profile,
        outcome=_OUTCOMES[code],
        exit_code=int(code),
        message=error.message,
        hint=error.hint,
        changed=None if code is Exit.UNSAFE else False,
        gate=gate_of(error),
    )


def gate_of(error: BaseException | None) -> dict[str, Any] | None:
    """The gate report behind an error, where there is one."""
    while error is not None:
        report = getattr(error, "report", None)
        if isinstance(report, GateReport):
            return gate_summary(report)
        error = error.__cause__
    return None


def gate_summary(report: GateReport) -> dict[str, Any]:
    """A gate report for the result document."""
    return {
        "verdict": report.outcome.value,
        "checks": [v.model_dump(mode="json") for v in report.verdicts],
        "figures": report.figures,
        "notes": list(report.notes),
        "seconds": report.seconds,
    }
