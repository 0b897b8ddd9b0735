"""Start the engine and follow its log until it answers /health on our own socket, dies, or its time is over."""

import time
from datetime import UTC, datetime
from typing import Any

from ops.engine import log
from ops.errors import EngineDied, GuardActed, StepFailed
from ops.model.gate import GateReport, Subset
from ops.model.verdict import Question
from ops.run import Run, hashes

_LINES_KEPT = 400
_PATIENCE_S = 60.0
"""Engine seconds between its word that it is ready and /health 200: one health timeout (20 s) and two tries more."""


def do(run: Run, *, release: str) -> dict[str, Any]:
    profile = run.profile(release)
    refuse_drift(run, release)
    started = run.call("lifecycle.start", supervisor=run.supervisor, wait_s=130.0)
    run.started = started
    begun = time.monotonic()
    watcher = _Watcher(run, begun, expected_s(run))
    found = run.call(
        "watch.start",
        run=run.identity.run if run.armed else None,
        pid=started["pid"],
        starttime=started["starttime"],
        log=started["log"],
        log_offset=started["log_offset"],
        address=run.address(release),
        port=profile.engine.port,
        ready={"mark": log.READY, "patience_s": run.host.clock.to_wall_s(_PATIENCE_S)},
        deadline_at=started["asked_at"] + run.host.clock.to_wall_s(profile.timeouts.load_timeout_s),
        wait_s=run.host.clock.to_wall_s(profile.timeouts.load_timeout_s) + 60.0,
        supervisor=run.supervisor,
        on_event=watcher,
    )
    load_s = run.host.clock.from_wall_s(time.monotonic() - begun)
    if found["outcome"] == "undone":
        raise GuardActed(
            "undone while it loaded: its deadline passed, the host rebooted, or another client took over",
            hint=f"ops status --host {run.host.name}",
            host=run.host.name,
        )
    if found["outcome"] == "died":
        cause = log.cause_of_death(watcher.lines)
        shown = "\n".join(f"    {line}" for line in log.relevant_lines(watcher.lines))
        raise EngineDied(
            f"the engine died in phase '{watcher.phase}' after {load_s:.0f} s: {cause.message}\n{shown}",
            report=_report(cause, watcher, load_s),
            hint=f"{cause.remedy}; whole log: ops logs --host {run.host.name} --release {release}",
            host=run.host.name,
        )
    if found["outcome"] == "timed-out":
        raise StepFailed(
            f"the engine did not serve within {profile.timeouts.load_timeout_s:.0f} s; it stands in phase "
            f"'{watcher.phase}', last line: {(log.relevant_lines(watcher.lines, 1) or ['(none)'])[0]}",
            hint="raise timeouts.load_timeout_s for a load that advances; look at the log of one that stands still",
            host=run.host.name,
        )
    return {"pid": started["pid"], "load_s": round(load_s, 1), "health": found["health"], "phases": watcher.phases}


def _report(cause: log.Cause, watcher: "_Watcher", load_s: float) -> GateReport:
    """The gate's first questions, answered by the engine's death: a taken port is another server's (`itself`)."""
    taken = cause.name == "port-in-use"
    name, question = ("itself", "Is the port ours?") if taken else ("alive", "Does the engine run?")
    evidence = {"cause": cause.name, "phase": watcher.phase, "log": log.relevant_lines(watcher.lines)}
    verdict = Question(name, question).failed(cause.message, cause.remedy, **evidence)
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    return GateReport(subset=Subset.DEPLOY, verdicts=(verdict,), started_at=started_at, seconds=round(load_s, 1))


def refuse_drift(run: Run, release: str) -> None:
    """What starts is what was deployed. Raises: StepFailed naming the files that somebody changed."""
    drifted = run.call("store.verify", release=release, hashes=hashes(run.manifest(release)))["drifted"]
    if drifted:
        raise StepFailed(
            f"{', '.join(drifted)} of release {release} are not what was deployed: somebody changed them on the host",
            hint=f"deploy the profile again, which puts them back: ops deploy --profile {release.rpartition('-')[0]}",
            host=run.host.name,
        )


def expected_s(run: Run) -> float | None:
    """How long the last successful start on this host took (engine seconds), or None."""
    for event in reversed(run.facts["journal"]):
        if event.get("event") == "step-done" and event["step"]["kind"] == "start":
            return float(event["evidence"]["load_s"])
    return None


class _Watcher:
    """Turns log lines into phases for the operator."""

    def __init__(self, run: Run, begun: float, expected: float | None) -> None:
        self.run = run
        self.begun = begun
        self.expected = expected
        self.phase = "process start"
        self.phases: dict[str, float] = {}
        self.lines: list[str] = []

    def __call__(self, event: Any) -> None:
        for line in event["lines"]:
            self.lines.append(line)
            phase = log.phase_of(line)
            if phase and phase != self.phase and phase not in self.phases:
                elapsed = self.run.host.clock.from_wall_s(time.monotonic() - self.begun)
                self.phase = phase
                self.phases[phase] = round(elapsed, 1)
                self.run.reporter.phase(self.run.host.name, phase, elapsed, self.expected)
        del self.lines[:-_LINES_KEPT]
