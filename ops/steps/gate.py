"""Judge the running engine; the verdicts go to the journal whatever they are."""

from typing import Any

from ops.errors import GateFailed
from ops.model.gate import GateReport, Subset
from ops.model.verdict import Outcome, not_passed
from ops.run import Run


def do(run: Run, *, release: str, subset: str) -> dict[str, Any]:
    report = run.gate(run, release, Subset(subset))
    run.reports.append(report)
    note(run, release, Subset(subset), report)
    if report.outcome is not Outcome.PASS:
        problems = not_passed(report.verdicts)
        raise GateFailed(
            f"the gate did not pass: {'; '.join(v.line() for v in problems)}",
            report=report,
            hint=problems[0].remedy if problems else "",
            host=run.host.name,
        )
    return {"outcome": report.outcome.value, "figures": report.figures, "seconds": report.seconds}


def note(run: Run, release: str, subset: Subset, report: GateReport, *, fenced: bool = True) -> None:
    """Write a gate's verdicts to the journal."""
    run.journal(
        "gated",
        fenced=fenced,
        release=release,
        subset=subset.value,
        outcome=report.outcome.value,
        verdicts=[v.model_dump(mode="json") for v in report.verdicts],
        figures=report.figures,
        notes=list(report.notes),
        seconds=report.seconds,
    )
