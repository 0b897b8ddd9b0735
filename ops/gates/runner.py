"""Ask the questions in order, and write down what came out."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from ops.gates import all_gates
from ops.model.gate import Gate, GateReport, Learned, Server, Subset
from ops.model.verdict import Outcome, Question, Verdict


def run_gate(
    server: Server,
    subset: Subset = Subset.DEPLOY,
    *,
    gates: Sequence[Gate] | None = None,
    today: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> GateReport:
    """Ask every question that means something, and report.

    A question is not asked when the profile skips it (with its written reason), when one that it needs did not pass,
    or, where it is costly, when the release is refused already: then nothing it could say would let it take traffic.
    """
    started, began_s = today(), server.clock.now_s()
    learned = Learned(subset)
    verdicts: list[Verdict] = []
    for gate in gates if gates is not None else all_gates():
        if subset is Subset.ROLLBACK and not gate.on_rollback:
            continue
        verdict = _asked(gate, server, learned, verdicts)
        server.say(verdict.line())
        verdicts.append(verdict)
    return GateReport(
        subset=subset,
        verdicts=tuple(verdicts),
        figures=learned.figures,
        learned=learned.expectations,
        baseline=learned.baseline,
        notes=tuple(learned.notes),
        started_at=started.isoformat(timespec="seconds"),
        seconds=round(server.clock.now_s() - began_s, 1),
    )


def _asked(gate: Gate, server: Server, learned: Learned, before: Sequence[Verdict]) -> Verdict:
    question = Question(gate.name, gate.question)
    reason = server.profile.gates.skip.get(gate.name)
    if reason:
        learned.notes.append(f"check {gate.name} left out by the profile: {reason}")
        return question.skipped(f"left out by the profile: {reason}", by_profile=True)
    stopped = {v.name: v.outcome for v in before if _stops(v)}
    missing = [name for name in gate.needs if name in stopped]
    if missing:
        return question.skipped(f"not asked: {missing[0]} is {stopped[missing[0]].value}")
    refused = [v for v in before if v.outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE)]
    if gate.costly and refused:
        return question.skipped(f"not asked: {refused[0].name} is {refused[0].outcome.value} already")
    return gate.judge(server, learned)


def _stops(verdict: Verdict) -> bool:
    """Whether what needs this answer means nothing; a check left out with a written reason stops nothing."""
    if verdict.outcome is Outcome.SKIPPED:
        return not verdict.evidence.get("by_profile") and verdict.message.startswith("not asked")
    return not verdict.passed
