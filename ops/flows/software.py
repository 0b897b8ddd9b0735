"""The software of a host: what a release runs on, proven where it will run, and brought there."""

from collections.abc import Mapping, Sequence
from typing import Any

from ops.errors import StepFailed
from ops.model.ports import Host, Reporter
from ops.model.release import Release
from ops.model.stack import StackLock
from ops.model.verdict import Outcome, Verdict, combine, not_passed
from ops.stacks import proof
from ops.steps.stage import PROVE_S


def wanted(release: Release, fallback: Release | None) -> dict[str, Any]:
    """What preflight looks for: the software of the candidate and of its fallback, as their manifests name it."""
    found = {"candidate": release.manifest["software"]}
    return {**found, "fallback": fallback.manifest["software"]} if fallback is not None else found


def prove(
    host: Host,
    software: Mapping[str, Any],
    lock: StackLock,
    *,
    argv: Sequence[str] = (),
    archs: Sequence[str] = (),
) -> list[Verdict]:
    """Compare an image or an environment on a host with its lock, from the inside, and keep the outcome there."""
    asked = proof.request(lock, argv=argv)
    answer = host.call("stack.prove", software=software, request=asked, timeout_s=PROVE_S, wait_s=PROVE_S + 60.0)
    found = judged(answer, lock, asked, archs)
    host.call(
        "stack.remember",
        instance_dir=host.spec.instance_dir,
        software=software,
        proof={
            "outcome": combine(found).value,
            "lock": software.get("lock"),
            "verdicts": [v.model_dump(mode="json") for v in found],
        },
    )
    return found


def judged(answer: Mapping[str, Any], lock: StackLock, asked: Mapping[str, Any], archs: Sequence[str]) -> list[Verdict]:
    """The verdicts on an answer; one that says nothing is inconclusive."""
    if "problem" in answer:
        text = f"it cannot be asked: {answer['problem']}"
        return [proof.PACKAGES.inconclusive(text, "run it by hand on the host, and look at what it prints")]
    return proof.verdicts(answer, lock, asked, archs)


def require(verdicts: Sequence[Verdict], host: str, what: str) -> None:
    """Raises: StepFailed naming what did not pass."""
    if combine(verdicts) is not Outcome.PASS:
        problems = not_passed(verdicts)
        raise StepFailed(
            f"{what} is not what is locked: {'; '.join(v.line() for v in problems)}",
            hint=problems[0].remedy if problems else "",
            host=host,
        )


def say_all(reporter: Reporter, host: str, verdicts: Sequence[Verdict]) -> None:
    """Show each verdict as one line."""
    for verdict in verdicts:
        reporter.say(host, verdict.line())
