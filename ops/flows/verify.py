"""`ops verify`: is what was deployed still what is there? Reads, and takes no lock."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ops.errors import Exit, OpsError
from ops.flows.hosts import connected
from ops.flows.report import failed
from ops.model.inventory import HostSpec
from ops.model.result import HostResult
from ops.model.state import Facts, profile_name
from ops.model.verdict import Outcome, Verdict, combine, not_passed
from ops.verify import look

_OUTCOMES = {
    Outcome.PASS: ("holds", Exit.DONE),
    Outcome.FAIL: ("found-wanting", Exit.FOUND_WANTING),
    Outcome.INCONCLUSIVE: ("inconclusive", Exit.INCONCLUSIVE),
}
_AT_ONCE = 16


def verify_all(specs: Sequence[HostSpec]) -> list[HostResult]:
    """Verify hosts, several at once; the results are in the order asked."""
    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, max(1, len(specs)))) as pool:
        return list(pool.map(verify, specs))


def verify(spec: HostSpec) -> HostResult:
    """Ask every question of one host. Never raises an OpsError: the result says what happened."""
    try:
        with connected(spec) as host:
            facts, verdicts = look(host)
            return result(spec, facts, verdicts)
    except OpsError as error:
        return failed(spec, None, error)


def result(spec: HostSpec, facts: Facts, verdicts: Sequence[Verdict]) -> HostResult:
    """Put the answers into one result: what is wrong first, and warnings even when all holds."""
    release = facts["links"]["current"]
    outcome = combine(verdicts)
    word, code = _OUTCOMES[outcome]
    problems = not_passed(verdicts)
    warnings = [f"warning: {v.name}: {v.message}" for v in verdicts if v.passed and v.evidence.get("warning")]
    said = [v.line() for v in problems] or [f"{release} is as it was deployed"]
    return HostResult.on(
        spec,
        profile=profile_name(release),
        release=release,
        outcome=word,
        exit_code=int(code),
        changed=False,
        message="\n  ".join([*said, *warnings]),
        hint=problems[0].remedy if problems else "",
        gate={"verdict": outcome.value, "checks": [v.model_dump(mode="json") for v in verdicts]},
    )
