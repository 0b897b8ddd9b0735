"""The whole product against the real SGLang on a CPU, over SSH.

If this fails, the simulated engine has drifted from the real one: what every other test proves is then true of a
stand-in only, and an operator's first real deploy is the experiment. Each test says what must serve when it begins,
so any of them can be run alone. Minutes long: `make test-engine-cpu`.
"""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import real_host
from cpu_report import Report
from real_host import RealHost, check, verdicts, wait_for

from ops.engine.log import cause_of_death

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

FIVE = "lab-tiny-eagle3-5step"
WRONG_IDS = [0, 1, 3]


def test_every_variable_of_engine_env_is_in_the_schedulers_own_environment(host: RealHost, report: Report) -> None:
    host.serve(FIVE)
    lines = (host.current_folder() / "engine.env").read_bytes().splitlines()
    ranks = host.schedulers()
    assert len(ranks) == 1
    assert b"SPT_NOENV=1" in lines
    assert b"OMP_NUM_THREADS=1" in lines
    for pid in ranks:
        held = real_host.environ(pid)
        assert held is not None
        assert [line for line in lines if line not in held] == []
    names = [line.partition(b"=")[0].decode() for line in lines]
    report.put("environment", {"ranks": len(ranks), "variables": names})


@pytest.mark.parametrize(("steps", "floor"), [(1, 1.4), (3, 1.8), (5, 2.0)])
def test_the_gate_admits_a_trained_draft_by_its_measured_acceptance(
    host: RealHost, report: Report, steps: int, floor: float
) -> None:
    name = f"lab-tiny-eagle3-{steps}step"
    deployed = host.serve(name)
    assert deployed["outcome"] == "deployed"
    assert deployed["gate"]["verdict"] == "pass"
    found = verdicts(deployed)
    asked = {name for name, outcome in found.items() if outcome == "pass"}
    assert asked >= {"itself", "wiring", "effective-config", "environment", "agreement", "acceptance", "soak", "speed"}
    assert set(found.values()) <= {"pass", "skipped"}
    length = deployed["gate"]["figures"]["accept_length"]
    assert floor < length <= steps + 1
    assert check(deployed, "acceptance")["evidence"]["cycles"] >= 100
    status = host.on_host("status")
    assert (status["state"], status["profile"], status["environment"]["verdict"]) == ("serving", name, "ok")
    _keep_figures(report, "lab-tiny-baseline", host)
    _keep_figures(report, name, host)


def test_a_draft_of_random_weights_is_refused_by_acceptance_and_the_old_release_serves(
    host: RealHost, report: Report
) -> None:
    before = host.serve(FIVE)
    refused = host.on_host("deploy", "--profile", "lab-tiny-random-draft")
    assert refused["exit_code"] == 3, host.explain(refused)
    acceptance = check(refused, "acceptance")
    assert acceptance["outcome"] == "fail"
    assert 1.0 <= acceptance["evidence"]["accept_length"] < 1.1
    others = {n: v for n, v in verdicts(refused).items() if n != "acceptance" and v not in ("pass", "skipped")}
    assert others == {}, "only the acceptance tells a random draft from a trained one"
    status = host.on_host("status")
    assert (status["state"], status["release"]) == ("serving", before["release"])
    report.put("random_draft", {"exit_code": 3, "check": "acceptance", "words": acceptance["message"]})


def test_other_layer_ids_are_refused_by_the_pinned_wiring_before_and_after_a_load(
    host: RealHost, report: Report
) -> None:
    before = host.serve(FIVE)
    right = _accept_length(host.on_host("gate"))
    with host.other_layer_ids(WRONG_IDS):
        refused = host.on_host("deploy", "--profile", "lab-tiny-eagle3-3step")
        assert refused["exit_code"] == 2, host.explain(refused)
        assert str(WRONG_IDS) in refused["message"]
        assert host.on_host("status")["release"] == before["release"]

        restarted = host.on_host("restart")
        assert restarted["exit_code"] != 0
        assert check(restarted, "wiring")["outcome"] == "fail", host.explain(restarted)
        wrong = _accept_length(restarted)
        assert wrong > 1.4, "the engine loaded the rewired draft, and speculates nearly as well as before"
        assert not host.on_host("status")["admitted"]
    healed = host.on_host("restart")
    assert healed["exit_code"] == 0, host.explain(healed)
    report.put(
        "wiring",
        {
            "ids": WRONG_IDS,
            "accept_length": wrong,
            "accept_length_right": right,
            "deploy": {"exit_code": 2, "check": "models (preflight)", "words": refused["message"]},
            "restart": {
                "exit_code": restarted["exit_code"],
                "check": "wiring",
                "words": check(restarted, "wiring")["message"],
            },
        },
    )


def test_a_rollback_goes_to_the_baseline(host: RealHost, report: Report) -> None:
    host.serve(FIVE)
    back = host.on_host("rollback", "--to", "baseline")
    assert back["exit_code"] == 0, host.explain(back)
    status = host.on_host("status")
    assert (status["state"], status["profile"]) == ("serving", "lab-tiny-baseline")
    assert status["admitted"]
    report.put("rollback", {"profile": back["profile"], "seconds": host.commands[-2]["seconds"]})


def test_a_killed_scheduler_is_named_and_the_next_start_serves(host: RealHost, report: Report) -> None:
    host.serve(FIVE)
    old = host.engine_processes()
    (rank,) = host.schedulers()
    log = host.engine_log()
    size = log.stat().st_size
    begun = time.monotonic()
    os.kill(rank, signal.SIGKILL)
    wait_for("the old processes are gone", lambda: not any(map(real_host.alive, old)), 60)
    last_words = log.read_bytes()[size:].split(b"== ops start ")[0].decode(errors="replace").splitlines()
    cause = cause_of_death(last_words)
    assert cause.name == "child-crashed", last_words
    assert f"pid={rank}" in cause.message
    wait_for("the supervisor's next start serves", lambda: host.on_host("status")["state"] == "serving", 240, 2.0)
    seconds = round(time.monotonic() - begun, 1)
    assert not set(old) & set(host.engine_processes())
    assert "engine-exit" in {event["event"] for event in host.ops("history")["events"]}
    report.put("killed_scheduler", {"cause": cause.name, "words": cause.message, "seconds": seconds})


def test_stop_leaves_no_process_and_no_listener(host: RealHost, report: Report) -> None:
    host.serve(FIVE)
    before = host.engine_processes()
    assert len(before) >= 3
    stopped = host.on_host("stop")
    assert stopped["exit_code"] == 0, host.explain(stopped)
    assert [pid for pid in before if real_host.alive(pid)] == []
    assert host.engine_processes() == {}
    with socket.socket() as probe:
        assert probe.connect_ex((host.box.address, 8000)) != 0
    assert host.on_host("status")["state"] == "stopped"
    report.put("stop", {"before": len(before), "after": 0, "seconds": stopped["phases"]["stop"]})


def test_a_flag_that_only_another_version_has_is_named_as_such(bare_host: RealHost, report: Report) -> None:
    """The profile's stack pins 0.5.17, which has the flag; the host runs 0.5.23, for which it begins two others."""
    name = bare_host.profile(
        "lab-other-version",
        {
            "extends": "lab-tiny-baseline",
            "stack": "lab-gpu",
            "engine": {"flags": {"cuda-graph-max-bs": 4}},
        },
    )
    refused = bare_host.on_host("deploy", "--profile", name)
    _nothing_serves(bare_host, refused)
    assert "ambiguous option: --cuda-graph-max-bs could match" in refused["message"]
    assert "another engine version" in refused["hint"]
    _keep_crash(report, "unknown-flag", bare_host, refused)


def test_a_port_that_is_taken_while_the_engine_loads_is_named(bare_host: RealHost, report: Report) -> None:
    with _squatter(bare_host):
        refused = bare_host.on_host("deploy", "--profile", "lab-tiny-baseline")
    _nothing_serves(bare_host, refused)
    assert "its port was taken" in refused["message"]
    _keep_crash(report, "port-in-use", bare_host, refused)


def test_a_scheduler_killed_while_it_loads_ends_the_deploy_at_once(bare_host: RealHost, report: Report) -> None:
    killed: list[float] = []

    def kill() -> None:
        rank = wait_for("a scheduler", bare_host.schedulers, 120)[0]
        os.kill(rank, signal.SIGKILL)
        killed.append(time.monotonic())

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    refused = bare_host.on_host("deploy", "--profile", "lab-tiny-baseline")
    killer.join()
    assert killed
    assert time.monotonic() - killed[0] < 90, "a dead load is not waited for"
    _nothing_serves(bare_host, refused)
    assert "the engine died in phase" in refused["message"]
    _keep_crash(report, "killed-while-loading", bare_host, refused)


def test_steps_without_topk_are_classified_though_no_profile_can_ask_for_them(
    engine_python: Path, bare_host: RealHost, report: Report
) -> None:
    models = bare_host.models
    words = f"--device cpu --attention-backend intel_amx --model-path {models}/tiny-llama --port 8123"
    words += f" --speculative-algorithm EAGLE3 --speculative-draft-model-path {models}/tiny-eagle3"
    words += " --speculative-num-steps 3"
    done = subprocess.run(
        [engine_python, "-m", "sglang.launch_server", *words.split()],
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    cause = cause_of_death((done.stdout + done.stderr).splitlines())
    assert cause.name == "too-many-arguments-unset"
    report.add("crashes", cause.name, {"cause": cause.name, "words": cause.message})


@contextmanager
def _squatter(host: RealHost) -> Iterator[None]:
    """Take the engine's port once the engine is loading; give it back when the engine complained."""

    def squat() -> None:
        wait_for("an engine", host.engine_processes, 120)
        with socket.create_server((host.box.address, 8000)):
            wait_for("its complaint", lambda: "[Errno 98]" in _latest_log(host), 240)

    thread = threading.Thread(target=squat, daemon=True)
    thread.start()
    yield
    thread.join(10)
    assert not thread.is_alive()


def _latest_log(host: RealHost) -> str:
    logs = sorted((host.instance / "logs").glob("*.log"), key=lambda file: file.stat().st_mtime)
    return logs[-1].read_text(errors="replace").rpartition("== ops start ")[2] if logs else ""


def _log_of(host: RealHost, refused: Mapping[str, Any]) -> str:
    (file,) = (host.instance / "logs").glob(f"{refused['profile']}-*.log")
    return file.read_text(errors="replace")


def _nothing_serves(host: RealHost, refused: Mapping[str, Any]) -> None:
    assert refused["exit_code"] == 3, host.explain(refused)
    assert "nothing serves, as before" in refused["message"]
    assert host.engine_processes() == {}
    assert host.on_host("status")["state"] == "empty"


def _keep_crash(report: Report, name: str, host: RealHost, refused: Mapping[str, Any]) -> None:
    """Keep the cause that the deploy named; the supervisor may have begun another start before the deploy ended it."""
    starts = _log_of(host, refused).split("== ops start ")[1:]
    causes = [cause_of_death(text.splitlines()) for text in starts]
    cause = next((cause for cause in causes if cause.message in refused["message"]), None)
    assert cause is not None, causes
    report.add("crashes", name, {"cause": cause.name, "words": cause.message})


def _accept_length(host: Mapping[str, Any]) -> float:
    return float(check(host, "acceptance")["evidence"]["accept_length"])


def _keep_figures(report: Report, name: str, host: RealHost) -> None:
    """Take a profile's figures from the host's own journal: its first good gate, and the start before it."""
    events = host.ops("history")["events"]
    gated = next(
        event
        for event in events
        if (event["event"], event.get("subset"), event.get("outcome")) == ("gated", "deploy", "pass")
        and event["release"].rpartition("-")[0] == name
    )
    figures, row = gated["figures"], {"gate_s": gated["seconds"]}
    for event in events[: events.index(gated)]:
        if event["event"] == "step-done" and event["step"]["kind"] == "start":
            row["start_s"] = event["evidence"]["load_s"]
    if "baseline" in figures:
        row |= {"tok_s": round(figures["baseline"]["1"]["mean"], 1), "runs": figures["baseline"]["1"]["n"]}
    else:
        (speed,) = figures["speed"]
        row |= {key: speed[key] for key in ("tok_s", "runs", "ratio", "low", "high")}
        row["accept_length"] = figures["accept_length"]
    report.add("profiles", name, row)
