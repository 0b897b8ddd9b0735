"""The gate on a host's running engine: what it needs of the host, and what the host remembers of it."""

from collections.abc import Mapping
from typing import Any

from ops.gates import baseline
from ops.gates.live import LiveServer
from ops.gates.runner import run_gate as judge
from ops.model.gate import BaselineRecord, GateReport, Stored, Subset
from ops.model.profile import Profile
from ops.run import Run


def run_gate(run: Run, release: str, subset: Subset) -> GateReport:
    """Judge `release`, which runs on the host."""
    return judge(server(run, release), subset)


def server(run: Run, release: str) -> LiveServer:
    """The running engine of `release` as the gate sees it."""
    profile = run.profile(release)
    look = {"ports": [profile.engine.port], "models": models(run, profile), "gpus": True}

    def call(verb: str, args: Mapping[str, Any], timeout_s: float, on_event: Any = None) -> Any:
        return run.host.call(verb, timeout_s=timeout_s, on_event=on_event, on_reconnect=run.say, **args)

    return LiveServer(
        profile=profile,
        manifest=run.manifest(release),
        clock=run.host.clock,
        bound=(run.address(release), profile.engine.port),
        call=call,
        look=lambda: run.observe(**look),
        read_log=lambda lines: run.observe(log_lines=lines)["log"],
        say=run.say,
        stored=stored(run, release),
        api_key=run.api_key,
    )


def models(run: Run, profile: Profile) -> dict[str, str]:
    """The model folders of a profile on this host."""
    spec = run.host.spec
    found = {"target": spec.path(profile.engine.model_path)}
    if profile.speculation is not None:
        found["draft"] = spec.path(profile.speculation.draft_path)
    return found


def stored(run: Run, release: str) -> Stored:
    """What earlier gates left on the host: the baseline's measurements when they still hold, and expectations."""
    remembered = run.call("store.remembered")
    text = remembered["baseline"]
    record = baseline.from_json(text) if text else None
    wanted = baseline.key(
        run.facts,
        _baseline_manifest(run),
        run.facts["links"]["baseline"] or "",
        run.profile(release).traffic.concurrency,
    )
    problem = baseline.problem(record, wanted)
    return Stored(
        baseline=record if not problem else None,
        baseline_problem=problem,
        expectations=remembered["expectations"],
    )


def _baseline_manifest(run: Run) -> Mapping[str, Any]:
    release = run.facts["links"]["baseline"]
    return run.manifest(release) if release else {}


def remember(run: Run, report: GateReport) -> None:
    """Keep on the host what a good gate learned."""
    record: BaselineRecord | None = report.baseline
    run.call(
        "store.remember",
        baseline=baseline.to_json(record) if record else None,
        expectations=report.learned,
    )
