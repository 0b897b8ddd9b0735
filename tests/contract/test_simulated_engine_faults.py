"""Each fault of the simulated engine has the effect that its name promises, and strikes whom it should.

If this fails, a gate is "proved" against a fault that did not strike, or a rollback meets a fault meant for the release
it replaces.
"""

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from engine_bench import TUNED, Bench, Engine, alive, environ, make_bench, refused, speculative_flags, start, wait_for

from ops.sandbox.engine.faultfile import clear_faults, list_faults, set_fault
from ops.sandbox.engine.sglang.faults import KNOBS, PRESETS

RELEASE = "eagle3-2step-0a1b2c"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = make_bench(tmp_path)
    made.settings(time_scale=50.0, load_s=0.2)
    return made


@contextmanager
def faulty(bench: Bench, fault: str | Mapping[str, Any], *flags: str, **options: Any) -> Iterator[Engine]:
    """Start a speculative server that the fault strikes."""
    set_fault(bench.simulation, fault)
    with start(bench, *speculative_flags(bench), "--max-running-requests", "16", *flags, **options) as engine:
        yield engine


def ready(engine: Engine) -> Engine:
    engine.wait_healthy()
    time.sleep(0.05)
    return engine


def mean_accept_length(engine: Engine, tokens: int = 400, prompts: int = 3) -> float:
    metas = [engine.generate(f"Sample {i} of the acceptance.", tokens)["meta_info"] for i in range(prompts)]
    return float(sum(m["completion_tokens"] for m in metas) / sum(m["spec_verify_ct"] for m in metas))


def decode_rate(engine: Engine, prompt: str = "Measure me.") -> float:
    meta = engine.generate(prompt, 500)["meta_info"]
    return 500 / float(meta["e2e_latency"])


def test_every_preset_uses_known_knobs_and_says_what_it_does() -> None:
    for name, preset in PRESETS.items():
        assert set(preset.knobs) <= set(KNOBS), name
        assert preset.description


def test_crash_during_load_ends_in_the_weights_with_a_traceback(bench: Bench) -> None:
    with faulty(bench, "crash-during-load") as engine:
        assert engine.wait_for_exit() == -9
        text = engine.text()
    assert "torch.OutOfMemoryError: CUDA out of memory" in text
    assert "Received sigquit from a child process" in text
    assert "KV Cache is allocated" not in text


@pytest.mark.parametrize("phase", ["init", "draft", "kv_cache", "graphs", "warmup"])
def test_a_crash_can_strike_in_any_phase(bench: Bench, phase: str) -> None:
    reached = {"draft": "type=Kimi", "kv_cache": "type=Llama", "graphs": "Memory pool end", "warmup": "Uvicorn running"}
    with faulty(bench, {"crash_in_load_at": phase, "crash_message": "RuntimeError: composed"}) as engine:
        assert engine.wait_for_exit() == -9
        assert "RuntimeError: composed" in engine.text()
        assert reached.get(phase, "Init parallel begin") in engine.text()
        assert "fired up" not in engine.text()


def test_hang_during_load_never_opens_the_port(bench: Bench) -> None:
    with faulty(bench, "hang-during-load") as engine:
        engine.wait_for_line("Capture target verify CUDA graph begin")
        time.sleep(1.0)
        assert engine.process.poll() is None
        assert "Capture target verify CUDA graph end" not in engine.text()
        with pytest.raises(requests.ConnectionError):
            engine.get("/health")


def test_crash_while_serving_kills_a_rank_after_it_was_ready(bench: Bench) -> None:
    with faulty(bench, "crash-while-serving") as engine:
        engine.wait_for_line("fired up and ready")
        assert engine.wait_for_exit() == -9
        assert "crashed with exit code -9. Triggering SIGQUIT" in engine.text()


def test_wrong_wiring_changes_the_drafts_file_and_halves_the_gain_until_cleared(bench: Bench) -> None:
    original = (bench.draft / "config.json").read_text()
    with faulty(bench, "wrong-wiring") as engine:
        ready(engine)
        changed = json.loads((bench.draft / "config.json").read_text())
        assert changed["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 29, 57]
        assert mean_accept_length(engine) == pytest.approx(1.3775, abs=0.07)
    clear_faults(bench.simulation)
    assert (bench.draft / "config.json").read_text() == original


def test_accept_collapse_is_invisible_in_the_lifetime_average(bench: Bench) -> None:
    with faulty(bench, "accept-collapse") as engine:
        ready(engine)
        assert mean_accept_length(engine) == pytest.approx(1.0, abs=0.01)
        assert engine.info()["internal_states"][0]["avg_spec_accept_length"] == pytest.approx(1.755)
        assert engine.get("/health").status_code == 200
        assert "accept len: 1.00, accept rate: 0.00" in engine.text()


def test_stale_accept_metric_is_wrong_only_in_the_lifetime_average(bench: Bench) -> None:
    with faulty(bench, "stale-accept-metric") as engine:
        ready(engine)
        assert mean_accept_length(engine) == pytest.approx(1.755, abs=0.07)
        assert engine.info()["internal_states"][0]["avg_spec_accept_length"] == 1.02


@pytest.mark.parametrize("kind", ["repeat", "replacement", "noise", "empty"])
def test_garbage_has_the_right_count_and_no_sense(bench: Bench, kind: str) -> None:
    with faulty(bench, {"garbage": kind}) as engine:
        ready(engine)
        body = engine.generate("Say something sensible.", 60)
    assert body["meta_info"]["completion_tokens"] == 60
    assert len(set(body["text"].split())) < 30
    assert " the " not in body["text"]


def test_generation_hangs_while_health_stays_green(bench: Bench) -> None:
    with faulty(bench, "health-ok-generation-hangs") as engine:
        ready(engine)
        with pytest.raises(requests.Timeout):
            requests.post(engine.url + "/generate", json={"text": "x"}, timeout=1.0)
        assert engine.get("/health").status_code == 200
        assert engine.get("/health").status_code == 200


def test_a_dead_scheduler_leaves_http_alive_and_health_red(bench: Bench) -> None:
    with faulty(bench, "scheduler-dead-http-alive") as engine:
        engine.wait_for_line("fired up and ready")
        wait_for(lambda: not any("scheduler" in name for name in engine.children().values()), 5, "the ranks to go")
        assert engine.get("/model_info").status_code == 200
        assert engine.get("/health").status_code == 503
        assert engine.process.poll() is None
        assert "Health check failed. Server couldn't get a response from detokenizer" in engine.text()
        with pytest.raises(requests.Timeout):
            requests.post(engine.url + "/generate", json={"text": "x"}, timeout=0.5)


def test_ranks_that_lost_their_environment_are_really_slower(bench: Bench) -> None:
    with faulty(bench, "env-lost-in-ranks") as engine:
        ready(engine)
        rank = next(pid for pid, name in engine.children().items() if name.endswith("TP0"))
        assert b"NCCL_PROTO" not in environ(rank)
        assert b"NCCL_PROTO=LL" in environ(engine.process.pid)
        assert decode_rate(engine) == pytest.approx(1755 / (18.67 + 4.67), rel=0.04)


def test_one_withheld_variable_is_missing_alone(bench: Bench) -> None:
    with faulty(bench, {"drop_env_in_ranks": ["NCCL_ALGO"]}) as engine:
        ready(engine)
        rank = next(pid for pid, name in engine.children().items() if name.endswith("TP1"))
        assert b"NCCL_ALGO" not in environ(rank)
        assert b"NCCL_PROTO=LL" in environ(rank)


def test_silent_changes_of_the_configuration_show_in_server_info(bench: Bench) -> None:
    with faulty(bench, "silent-draft-token-change") as engine:
        ready(engine)
        info = engine.info()
        assert (info["speculative_num_steps"], info["speculative_num_draft_tokens"]) == (2, 5)
        assert decode_rate(engine) == pytest.approx(1755 / (15.64 + 5 * 1.01), rel=0.04)
    clear_faults(bench.simulation)
    with faulty(bench, "running-requests-capped") as engine:
        ready(engine)
        info = engine.info()
        assert (info["max_running_requests"], info["internal_states"][0]["effective_max_running_requests_per_dp"]) == (
            8,
            8,
        )
        assert engine.get("/v1/loads").json()["loads"][0]["max_running_requests"] == 8


def test_adaptive_goes_off_with_a_warning_only(bench: Bench) -> None:
    set_fault(bench.simulation, "adaptive-off-silently")
    flags = [*speculative_flags(bench, steps=3), "--speculative-adaptive"]
    with start(bench, *flags) as engine:
        ready(engine)
        assert engine.info()["speculative_adaptive"] is False
        assert "speculative_adaptive disabled: " in engine.text()


@pytest.mark.parametrize(
    ("fault", "rate"), [("slow-20-percent", 94.0 * 0.8), ("slow-2-percent", 94.0 * 0.98), ("loses-under-load", 94.0)]
)
def test_a_slow_server_is_slow_by_its_name(bench: Bench, fault: str, rate: float) -> None:
    bench.settings(time_scale=20.0, load_s=0.2)
    with faulty(bench, fault) as engine:
        ready(engine)
        assert decode_rate(engine) == pytest.approx(rate, rel=0.02)


def test_losing_under_load_falls_below_the_baseline_at_eight_users(bench: Bench) -> None:
    bench.settings(time_scale=10.0, load_s=0.2)
    with faulty(bench, "loses-under-load") as engine:
        ready(engine)
        body = {"text": [f"User {i}." for i in range(8)], "sampling_params": {"temperature": 0, "max_new_tokens": 300}}
        metas = [answer["meta_info"] for answer in engine.post("/generate", body).json()]
    assert sum(300 / m["e2e_latency"] for m in metas) == pytest.approx(378 * 0.8, rel=0.05)


def test_the_first_token_comes_later(bench: Bench) -> None:
    with faulty(bench, "ttft-worse", "--enable-metrics") as engine:
        ready(engine)
        meta = engine.generate("A prompt that nobody has cached before.", 20)["meta_info"]
        assert meta["first_token_latency"] == pytest.approx(0.180 * 1.6, rel=0.1)


def test_it_dies_at_the_hundredth_request(bench: Bench) -> None:
    with faulty(bench, "dies-after-100-requests") as engine:
        ready(engine)
        for i in range(99):
            engine.generate(f"Short {i}.", 1)
        with pytest.raises(OSError):
            engine.generate("The hundredth.", 1)
        assert engine.wait_for_exit() == -9
        assert "CUDA error: an illegal memory access" in engine.text()


@pytest.mark.parametrize(("tokens", "dies"), [(4000, False), (4200, True)])
def test_a_prompt_beyond_the_drafts_context_kills_it(bench: Bench, tokens: int, dies: bool) -> None:
    with faulty(bench, "long-context-crash") as engine:
        ready(engine)
        if dies:
            with pytest.raises(OSError):
                engine.generate(" word" * tokens, 4)
            assert engine.wait_for_exit() == -9
        else:
            assert engine.generate(" word" * tokens, 4)["meta_info"]["completion_tokens"] == 4


def test_streams_are_truncated_only_under_load(bench: Bench) -> None:
    bench.settings(time_scale=10.0, load_s=0.2)
    with faulty(bench, "truncated-streams") as engine:
        ready(engine)
        alone = stream(engine, 0)
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda i: stream(engine, i), range(8)))
    assert alone == (200, True)
    cut = [result for result in together if not result[1]]
    assert cut
    assert all(tokens < 200 for tokens, _ in cut)


def stream(engine: Engine, user: int) -> tuple[int, bool]:
    """Return the tokens that a stream of 200 delivered, and whether it ended properly."""
    sampling = {"temperature": 0, "max_new_tokens": 200}
    body = {"text": f"Stream {user}.", "stream": True, "sampling_params": sampling}
    lines = [line for line in engine.post("/generate", body, stream=True).iter_lines() if line]
    chunks = [json.loads(line[6:]) for line in lines if line != b"data: [DONE]"]
    return max(chunk["meta_info"]["completion_tokens"] for chunk in chunks), lines[-1] == b"data: [DONE]"


def test_busy_is_503_while_the_log_advances_and_ends_by_itself(bench: Bench) -> None:
    bench.settings(time_scale=20.0, load_s=0.2)
    with faulty(bench, "busy-503") as engine:
        engine.wait_for_line("fired up and ready")
        time.sleep(0.1)
        began = time.monotonic()
        assert engine.get("/health").status_code == 503
        before = engine.text().count("Prefill batch")
        time.sleep(0.5)
        assert engine.text().count("Prefill batch") > before + 3
        engine.wait_healthy()
        assert (time.monotonic() - began) * 20 == pytest.approx(40, abs=8)
        assert engine.generate("And now?", 8)["meta_info"]["completion_tokens"] == 8


def test_cold_requests_are_slow_three_times(bench: Bench) -> None:
    with faulty(bench, "cold-first-requests") as engine:
        ready(engine)
        latencies = [engine.generate(f"Cold {i}.", 4)["meta_info"]["e2e_latency"] for i in range(4)]
    assert all(latency > 19 for latency in latencies[:3])
    assert latencies[3] < 2


def test_a_warm_cache_lasts_until_the_flush(bench: Bench) -> None:
    with faulty(bench, "prefix-cache-warm") as engine:
        ready(engine)
        warm = engine.generate("Never sent before, yet cached.", 2)["meta_info"]
        assert warm["cached_tokens"] == warm["prompt_tokens"] - 1
        assert engine.post("/flush_cache").status_code == 200
        assert engine.generate("Never sent before, and not cached.", 2)["meta_info"]["cached_tokens"] < 3


def test_streams_freeze_at_sigterm_when_asked(bench: Bench) -> None:
    bench.settings(time_scale=10.0, load_s=0.2)
    with faulty(bench, {"sigterm_freezes_streams": True}) as engine:
        ready(engine)
        sampling = {"temperature": 0, "max_new_tokens": 3000}
        response = engine.post("/generate", {"text": "Go.", "stream": True, "sampling_params": sampling}, stream=True)
        lines = response.iter_lines()
        next(lines)
        engine.process.terminate()
        engine.wait_for_line("Remaining number of requests 1.")
        time.sleep(0.5)
        assert engine.process.poll() is None
        response.close()
        assert engine.wait_for_exit() == 0


def test_a_composed_fault_works_under_no_name(bench: Bench) -> None:
    with faulty(bench, {"speed_factor": 0.9, "accept_factor": 0.95}) as engine:
        ready(engine)
        assert mean_accept_length(engine) == pytest.approx(1.755 * 0.95, abs=0.07)
        assert decode_rate(engine) == pytest.approx(94.0 * 0.9 * 0.95, rel=0.03)


def test_unknown_faults_and_knobs_are_refused(bench: Bench) -> None:
    with pytest.raises(KeyError, match="unknown fault"):
        set_fault(bench.simulation, "crash-on-tuesdays")
    with pytest.raises(ValueError, match="unknown knobs"):
        set_fault(bench.simulation, {"speed_facter": 0.5})
    bench.settings(knobs={"speed_facter": 0.5})
    status, text = refused(bench)
    assert (status, "unknown knobs ['speed_facter']" in text) == (1, True)


# Whom a fault strikes


def release_environment(release: str, instance: Path | None = None) -> dict[str, str]:
    place = {"OPS_INSTANCE_DIR": str(instance)} if instance else {}
    return {**TUNED, "OPS_RELEASE": release, **place}


def is_struck(bench: Bench, release: str, instance: Path | None = None) -> bool:
    """Start a release and say whether the fault in its way (a load crash) struck it."""
    with start(bench, environment=release_environment(release, instance), tp=1) as engine:
        wait_for(lambda: engine.process.poll() is not None or "fired up" in engine.text(), 20, "an end of the start")
        return engine.process.poll() is not None


def write_journal(instance: Path, command: str, purpose: str, release: str) -> None:
    instance.mkdir(exist_ok=True)
    event = {"event": "run-started", "run": "r", "command": command, "purpose": purpose, "release": release}
    with (instance / "journal.jsonl").open("a") as journal:
        journal.write(json.dumps(event) + "\n" + json.dumps({"event": "step-started", "step": "start"}) + "\n")


def test_next_strikes_one_release_and_each_of_its_starts(bench: Bench) -> None:
    set_fault(bench.simulation, "crash-during-load")
    assert is_struck(bench, RELEASE)
    assert list_faults(bench.simulation)[0]["claimed_by"] == RELEASE
    assert not is_struck(bench, "baseline-ffff")
    assert is_struck(bench, RELEASE)
    clear_faults(bench.simulation)
    assert not is_struck(bench, RELEASE)


def test_next_spares_what_was_started_before(bench: Bench) -> None:
    with start(bench, environment=release_environment(RELEASE), tp=1) as engine:
        ready(engine)
        set_fault(bench.simulation, "health-ok-generation-hangs")
        time.sleep(0.7)
        assert engine.generate("Still here?", 4)["meta_info"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("command", "purpose", "release", "struck"),
    [
        ("deploy", "candidate", RELEASE, True),
        ("restart", "candidate", RELEASE, True),
        ("deploy", "baseline", RELEASE, False),
        ("rollback", "rollback", RELEASE, False),
        ("deploy", "candidate", "another-release", False),
    ],
)
def test_only_the_candidate_of_a_deploy_claims(
    bench: Bench, tmp_path: Path, command: str, purpose: str, release: str, struck: bool
) -> None:
    instance = tmp_path / "default"
    write_journal(instance, "deploy", "candidate", "an-older-run")
    write_journal(instance, command, purpose, release)
    set_fault(bench.simulation, "crash-during-load")
    assert is_struck(bench, RELEASE, instance) is struck


def test_a_profiles_fault_strikes_all_its_releases(bench: Bench) -> None:
    set_fault(bench.simulation, "crash-during-load", on="eagle3-2step")
    assert is_struck(bench, RELEASE)
    assert is_struck(bench, "eagle3-2step-other")
    assert not is_struck(bench, "eagle3-5step-0a1b2c")


def test_current_strikes_the_running_server_and_ends_with_its_clearing(bench: Bench) -> None:
    bench.settings(time_scale=20.0, load_s=0.2)
    with start(bench, *speculative_flags(bench)) as engine:
        ready(engine)
        healthy = decode_rate(engine, "Before.")
        set_fault(bench.simulation, "slow-20-percent", on="current")
        time.sleep(0.8)
        slow = decode_rate(engine, "During.")
        clear_faults(bench.simulation)
        time.sleep(0.8)
        again = decode_rate(engine, "After.")
    assert slow == pytest.approx(healthy * 0.8, rel=0.03)
    assert again == pytest.approx(healthy, rel=0.03)


def test_current_can_kill_a_running_server(bench: Bench) -> None:
    with start(bench, tp=1) as engine:
        ready(engine)
        children = engine.children()
        set_fault(bench.simulation, "crash-while-serving", on="current")
        assert engine.wait_for_exit(5) == -9
        assert not [pid for pid in children if alive(pid)]
    with start(bench, tp=1) as later:
        ready(later)
        time.sleep(0.3)
        assert later.process.poll() is None
