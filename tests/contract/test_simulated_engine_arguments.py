"""The command line of the simulated engine.

If this fails, a launch script that the real engine would refuse starts in the sandbox (or the other way round), and
the preflight checks are tested against an engine that does not exist.
"""

import json
import subprocess
from pathlib import Path

import pytest
from engine_bench import CPU, TUNED, Bench, make_bench, refused, speculative_flags, start


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return make_bench(tmp_path_factory.mktemp("arguments"))


def recorded_last_line(name: str) -> str:
    lines = (CPU / name).read_text().strip().splitlines()
    return next(line for line in reversed(lines) if line.strip() and not line.startswith("rc "))


def test_the_version_is_the_pinned_one(bench: Bench) -> None:
    code = "import sglang; print(sglang.__version__)"
    shown = subprocess.run([bench.python, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "0.5.23"


def test_help_names_every_flag_that_the_real_help_names(bench: Bench) -> None:
    shown = subprocess.run(bench.command("--help"), capture_output=True, text=True, check=True).stdout
    real = (CPU / "help.txt").read_text()
    words = {word.strip("[],") for word in real.split("\noptions:\n")[0].split() if word.startswith("[--")}
    missing = {word for word in words if word not in shown}
    assert len(words) > 450
    assert not missing


def test_an_unknown_flag_ends_with_usage_and_status_2(bench: Bench) -> None:
    status, text = refused(bench, "--draft-tensor-parallel-size", "4")
    recorded = recorded_last_line("crash_unknown_flag.log")
    assert status == 2
    assert "usage: sglang serve [-h] --model-path MODEL_PATH\n" in text
    assert text.strip().splitlines()[-1] == recorded.replace("--no-such-flag 1", "--draft-tensor-parallel-size 4")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--speculative-num-steps", "two"], "argument --speculative-num-steps: invalid int value: 'two'"),
        (["--mem-fraction-static", "much"], "argument --mem-fraction-static: invalid float value: 'much'"),
        (["--load-format", "zip"], "argument --load-format: invalid choice: 'zip'"),
        (["--context-length"], "argument --context-length: expected one argument"),
    ],
)
def test_a_bad_value_ends_with_the_parsers_words(bench: Bench, flags: list[str], words: str) -> None:
    status, text = refused(bench, *flags)
    assert (status, words in text) == (2, True), text[-400:]


def test_num_steps_alone_ends_with_the_recorded_type_error(bench: Bench) -> None:
    flags = speculative_flags(bench)[:4]
    status, text = refused(bench, *flags, "--speculative-num-steps", "7")
    assert status == 1
    assert text.strip().splitlines()[-1] == recorded_last_line("crash_num_steps_alone.log")
    assert "Traceback (most recent call last):" in text
    assert "include_parent=False" in text


def test_draft_tokens_without_steps_are_a_bare_assertion(bench: Bench) -> None:
    flags = speculative_flags(bench)[:4]
    status, text = refused(bench, *flags, "--speculative-num-draft-tokens", "4")
    assert (status, text.strip().splitlines()[-1]) == (1, "AssertionError")


def test_an_unknown_algorithm_is_named(bench: Bench) -> None:
    status, text = refused(bench, "--speculative-algorithm", "eagle9")
    assert (status, text.strip().splitlines()[-1]) == (1, "ValueError: Unknown speculative algorithm name: EAGLE9")


def test_a_missing_draft_ends_with_the_recorded_os_error(bench: Bench) -> None:
    flags = speculative_flags(bench)
    flags[3] = "/models/absent-draft"
    status, text = refused(bench, *flags)
    recorded = recorded_last_line("crash_draft_missing.log")
    assert status == 1
    assert text.strip().splitlines()[-1] == recorded.replace("/models/no-such-draft", "/models/absent-draft")


def test_a_missing_target_ends_before_the_load(bench: Bench) -> None:
    status, text = refused(bench, "--model-path", "/models/absent-target")
    assert status == 1
    assert "Load weight" not in text


def test_draft_tokens_are_forced_to_steps_plus_one(bench: Bench) -> None:
    with start(bench, *speculative_flags(bench, steps=4, draft_tokens=24)) as engine:
        engine.wait_healthy()
        assert engine.info()["speculative_num_draft_tokens"] == 5
        assert "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1" in engine.text()


def test_an_unset_request_limit_becomes_48_with_speculation_only(bench: Bench) -> None:
    recorded = (CPU / "crash_draft_hidden_mismatch.log").read_text()
    words = "Max running requests is reset to 48 for speculative decoding."
    assert words in recorded
    with start(bench, *speculative_flags(bench)) as engine:
        engine.wait_healthy()
        info = engine.info()
        assert info["max_running_requests"] == 48
        assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == 48
        assert words in engine.text()
    with start(bench) as engine:
        engine.wait_healthy()
        assert engine.info()["max_running_requests"] is None
        assert words not in engine.text()


def test_a_context_beyond_the_targets_needs_the_override(bench: Bench) -> None:
    status, text = refused(bench, "--context-length", "200000", environment={**TUNED, **no_override()})
    assert status == 1
    assert "User-specified context_length (200000) is greater than the derived context_length (131072)" in text


def test_a_short_draft_context_kills_the_load_unless_overridden(bench: Bench) -> None:
    status, text = refused(bench, *speculative_flags(bench), environment={**TUNED, **no_override()})
    assert status == -9
    assert "ValueError: Warning: Target model's context_length (131072)" in text
    assert "Received sigquit from a child process. It usually means the child failed." in text
    with start(bench, *speculative_flags(bench)) as engine:
        engine.wait_healthy()
        assert "Overriding the draft model's max_position_embeddings to 131072." in engine.text()


def no_override() -> dict[str, str]:
    return {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "0"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 4096}, "mat1 and mat2 shapes cannot be multiplied (14x21504 and 12288x4096)"),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 75]}},
            "mat1 and mat2 shapes cannot be multiplied (14x14336 and 21504x7168)",
        ),
    ],
    ids=["draft-hidden-size", "layer-out-of-range"],
)
def test_wrong_shapes_die_in_the_warm_up_request(tmp_path: Path, change: dict[str, object], words: str) -> None:
    bench = make_bench(tmp_path)
    bench.draft_config(**change)
    status, text = refused(bench, *speculative_flags(bench))
    assert status == -9
    assert f"RuntimeError: {words}" in text
    assert "Scheduler hit an exception: Traceback (most recent call last):" in text
    assert "include_parent=True" in text.strip().splitlines()[-1]
    assert "fired up" not in text


def test_wrong_shapes_die_on_the_first_request_when_the_warm_up_is_skipped(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    bench.draft_config(hidden_size=4096)
    with start(bench, *speculative_flags(bench), "--skip-server-warmup") as engine:
        engine.wait_healthy()
        assert "fired up and ready to roll" in engine.text()
        with pytest.raises(OSError):
            engine.generate("one request is enough", 4)
        assert engine.wait_for_exit() == -9


@pytest.mark.parametrize("value", ["NOPE", "LL,SIMPEL", "^LL129"])
def test_a_protocol_that_nccl_does_not_know_is_invalid_usage(bench: Bench, value: str) -> None:
    status, text = refused(bench, environment={**TUNED, "NCCL_PROTO": value})
    assert status == -9
    assert "RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)" in text
    assert "Unrecognized element token" in text


@pytest.mark.parametrize("value", ["LL,Simple", "^LL128", "allreduce:ll"])
def test_lists_that_nccl_knows_start(bench: Bench, value: str) -> None:
    with start(bench, environment={**TUNED, "NCCL_PROTO": value}) as engine:
        engine.wait_healthy()


def test_too_small_a_memory_fraction_says_which_way_to_go(bench: Bench) -> None:
    status, text = refused(bench, "--mem-fraction-static", "0.3")
    assert status == -9
    assert "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value" in text
    assert "Load weight end" in text


def test_too_large_a_memory_fraction_dies_in_graph_capture(bench: Bench) -> None:
    status, text = refused(bench, "--mem-fraction-static", "0.995")
    assert status == -9
    assert "Capture cuda graph failed: CUDA out of memory" in text
    assert "1. set --mem-fraction-static to a smaller value" in text


def test_the_config_file_gives_keys_and_the_command_line_wins(bench: Bench, tmp_path: Path) -> None:
    config = tmp_path / "keys.yaml"
    config.write_text("api-key: from-the-file\nserved-model-name: file-name\nenable-metrics: true\n")
    flags = ["--config", str(config), "--served-model-name", "argv-name"]
    with start(bench, *flags, headers={"Authorization": "Bearer from-the-file"}) as engine:
        engine.wait_healthy()
        assert engine.info()["served_model_name"] == "argv-name"
        assert engine.get("/metrics").status_code == 200
        engine.headers = {}
        assert engine.get("/server_info").status_code == 401


def test_a_config_file_that_is_not_yaml_is_refused(bench: Bench, tmp_path: Path) -> None:
    config = tmp_path / "keys.json"
    config.write_text(json.dumps({"api-key": "x"}))
    status, text = refused(bench, "--config", str(config))
    assert (status, "Config file must be YAML format, got: .json" in text) == (1, True)
