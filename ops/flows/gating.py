"""The gate on a host's running engine: what it needs of the host, and what the host remembers of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ops.engine.phase_timer import phase_shares
from ops.errors import ConfigError, Exit, OpsError
from ops.flows.hosts import run_on
from ops.flows.report import failed, gate_summary
from ops.gates import all_gates, baseline
from ops.gates.live import LiveServer
from ops.gates.runner import run_gate as judge
from ops.model.gate import BaselineRecord, GateReport, Stored, Subset
from ops.model.inventory import HostSpec
from ops.model.ports import Reporter
from ops.model.profile import Profile
from ops.model.release import follows
from ops.model.result import HostResult
from ops.model.state import profile_name
from ops.model.verdict import Outcome
from ops.run import Run, software_answer
from ops.steps.gate import note

_OUTCOMES = {
    Outcome.PASS: ("passed", Exit.DONE),
    Outcome.FAIL: ("failed", Exit.FOUND_WANTING),
    Outcome.INCONCLUSIVE: ("inconclusive", Exit.INCONCLUSIVE),
}


def gate(spec: HostSpec, subset: Subset, reporter: Reporter) -> HostResult:
    """`ops gate`: judge what runs on a host, and keep the verdict in its journal. Takes no lock, changes nothing
    else."""
    try:
        with run_on(spec, reporter) as run:
            release = run.facts["links"]["current"]
            if release is None:
                raise ConfigError("nothing is deployed here", hint="ops deploy --profile <profile>", host=spec.name)
            report = run_gate(run, release, subset)
            note(run, release, subset, report, fenced=False)
            outcome, code = _OUTCOMES[report.outcome]
            problem = report.first_problem
            return HostResult.on(
                spec,
                profile=profile_name(release),
                release=release,
                outcome=outcome,
                exit_code=int(code),
                changed=False,
                message=problem.line() if problem else f"{release} passes",
                hint=problem.remedy if problem else "",
                gate=gate_summary(report),
            )
    except OpsError as error:
        return failed(spec, None, error)


def run_gate(run: Run, release: str, subset: Subset) -> GateReport:
    """Judge `release`, which runs on the host."""
    live = server(run, release)
    gates = [gate for gate in all_gates() if gate.of_follower or not follows(live.manifest)]
    report = judge(live, subset, gates=gates)
    metrics = live.http("GET", "/metrics", timeout_s=30.0)
    shares = phase_shares(metrics.body) if metrics.status == 200 and isinstance(metrics.body, str) else {}
    if not shares:
        return report
    return report.model_copy(update={"figures": {**report.figures, "phase_shares": shares}})


def server(run: Run, release: str) -> LiveServer:
    """The running engine of `release` as the gate sees it."""
    profile = run.profile(release)

    def call(verb: str, args: Mapping[str, Any], timeout_s: float, on_event: Any = None) -> Any:
        return run.host.call(verb, wait_s=timeout_s, on_event=on_event, on_reconnect=run.say, **args)

    # GPUs, driver and memory are asked once a gate: nvidia-smi is slow, and no check looks at them again.
    gpus = run.observe(gpus=True)["gpus"]
    software = software_answer(run.host, run.manifest(release))

    def look() -> Mapping[str, Any]:
        facts = run.observe(ports=[profile.engine.port], models=models(run, profile))
        run.facts = {**facts, "gpus": gpus, "software_answer": software}
        return run.facts

    look()
    return LiveServer(
        profile=profile,
        manifest=run.manifest(release),
        clock=run.host.clock,
        bound=(run.address(release), profile.engine.port),
        call=call,
        look=look,
        read_log=lambda lines: run.observe(log_lines=lines)["log"],
        say=run.say,
        stored=stored(run, release),
        api_key=run.key("api-key"),
        admin_key=run.key("admin-api-key", "api-key"),
    )


def models(run: Run, profile: Profile) -> dict[str, dict[str, Any]]:
    """The model folders of a profile on this host, and whose weights to digest: a draft's (small) always, a target's
    (hundreds of GB) only when the profile pins them.
    """
    spec = run.host.spec
    target = {"folder": spec.path(profile.engine.model_path), "weights": profile.target.weights_sha256 is not None}
    if profile.speculation is None:
        return {"target": target}
    return {"target": target, "draft": {"folder": spec.path(profile.speculation.draft_path), "weights": True}}


def stored(run: Run, release: str) -> Stored:
    """What earlier gates left on the host: the yardstick of `release` when it still holds, and expectations.

    The yardstick of a speculative release is the baseline's measurement, that of any other its own.
    """
    profile = run.profile(release)
    remembered = run.call("store.remembered")
    if run.assumed_baseline is not None:
        return Stored(baseline=run.assumed_baseline, expectations=remembered["expectations"])
    yardstick = run.facts["links"]["baseline"] if profile.speculative else release
    concurrency = profile.traffic.concurrency
    problem = baseline_problem(run, yardstick, concurrency) if yardstick else "there is no baseline release"
    record = baseline.from_json(remembered["baseline"]) if remembered["baseline"] and not problem else None
    return Stored(baseline=record, baseline_problem=problem, expectations=remembered["expectations"])


def baseline_problem(run: Run, release: str, concurrency: Sequence[int]) -> str:
    """Why the host's stored measurement is no yardstick for what runs there now; empty when it is one."""
    text = run.call("store.remembered")["baseline"]
    record = baseline.from_json(text) if text else None
    return baseline.problem(record, baseline.key(run.facts, run.manifest(release), release, concurrency))


def read_record(path: Path | None) -> BaselineRecord | None:
    """A `baseline.json` given by hand. Raises: ConfigError when it is none."""
    if path is None:
        return None
    try:
        return baseline.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} is no baseline record: {error}", hint="it is <ops_root>/<instance>/baseline.json"
        ) from error


def remember(run: Run, report: GateReport) -> None:
    """Keep on the host what a good gate learned."""
    record = report.baseline
    text = baseline.to_json(record) if record else None
    run.call("store.remember", baseline=text, expectations=report.learned)
