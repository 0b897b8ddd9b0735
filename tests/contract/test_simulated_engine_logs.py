"""Log lines and metric names of the simulated engine against recordings of the real one.

If this fails, the load phases, crash causes and metrics that ops reads in the sandbox are not those that a real server
writes: the progress display and the crash classes are tested against fiction.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_bench import CPU, GPU, Bench, Engine, make_bench, speculative_flags, start
from engine_shapes import first_rank_shapes, missing_in_order, shape

# Lines of the recordings that only a CPU run, its missing kernels or its polling client produce.
CPU_ONLY = (
    "\x1b[#;#m'--disable-cuda-graph'",
    "Overlap schedule is not implemented",
    "Non-overlap (synchronous)",
    "Fail to set RLIMIT_NOFILE",
    "init_threads_binding",
    "init_cpu_threads_env",
    "Cannot detect CUDA",
    "Ignore import error",
)
# The story's target understands images: its warm-up is a chat request, and a text model's is /generate.
CLIENT_LINE = re.compile(r"INFO: +CLIENT - ")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return make_bench(tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def served(bench: Bench) -> Iterator[tuple[Engine, str]]:
    """A text target with speculation on two ranks, after some requests: the engine and its log."""
    (bench.target / "config.json").write_text(json.dumps(LLAMA))
    bench.draft_config(hidden_size=4096, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 15, 28]})
    flags = [*speculative_flags(bench, steps=4), "--enable-metrics", "--max-running-requests", "6"]
    with start(bench, *flags, environment={"SGLANG_ENABLE_METRICS_DEVICE_TIMER": "1", "NCCL_DEBUG": "INFO"}) as engine:
        engine.wait_healthy()
        for i in range(3):
            engine.generate(f"Fact {i} about glaciers.", 300)
        body = {"text": "Once more", "stream": True, "sampling_params": {"max_new_tokens": 20, "temperature": 0}}
        engine.post("/generate", body)
        yield engine, engine.text()


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def wanted(text: str) -> list[str]:
    shapes = first_rank_shapes(text)
    return [s for s in shapes if not s.startswith(CPU_ONLY) and not CLIENT_LINE.match(s)]


def test_the_first_line_says_simulated(served: tuple[Engine, str]) -> None:
    stamped = [line for line in served[1].splitlines() if line.startswith("[")]
    assert "SIMULATED x 100" in stamped[0]


def test_a_speculative_start_writes_the_recorded_lines_in_order(served: tuple[Engine, str]) -> None:
    recorded = wanted((CPU / "startup_eagle3.log").read_text())
    assert len(recorded) > 25
    # On the CPU nothing is captured, so both "Disable prefill" lines stand before the sizes and are compared below.
    recorded = [line for line in recorded if not line.startswith("Disable prefill CUDA graph")]
    assert missing_in_order(recorded, first_rank_shapes(served[1])) == []


def test_graph_capture_writes_the_recorded_lines_of_a_gpu_in_order(served: tuple[Engine, str]) -> None:
    recorded = first_rank_shapes((GPU / "startup_eagle3.log").read_text())
    graphs = [
        line for line in recorded if line.startswith(("Capture ", "Disable prefill", "max_total", "Engine startup"))
    ]
    assert len(graphs) == 10
    assert missing_in_order(graphs, first_rank_shapes(served[1])) == []
    assert re.search(r"Capturing batches \(bs=1 avail_mem=[\d.]+ GB\): 100%\|█+\| 6/6 ", served[1])


def test_every_rank_reports_its_load_and_only_the_first_its_batches(served: tuple[Engine, str]) -> None:
    for rank in ("TP0", "TP1"):
        assert re.search(rf" {rank}\] Load weight begin\. avail mem=[\d.]+ GB", served[1])
    assert " TP1] Decode batch" not in served[1]
    assert " TP0] Decode batch" in served[1]


def test_a_plain_start_writes_the_recorded_lines_in_order(bench: Bench, served: tuple[Engine, str]) -> None:
    recorded = [s for s in wanted((CPU / "startup_base.log").read_text()) if not s.startswith("Disable prefill")]
    with start(bench, tp=1) as engine:
        engine.wait_healthy()
        text = engine.text()
    assert missing_in_order(recorded, first_rank_shapes(text)) == []
    assert "target verify" not in text
    assert "Capture target decode CUDA graph begin" in text


def test_decode_and_prefill_lines_have_the_recorded_shape(served: tuple[Engine, str]) -> None:
    recorded = {shape(line) for line in (CPU / "decode.log").read_text().splitlines()}
    plain = {shape(line) for line in (CPU / "decode_base.log").read_text().splitlines()}
    gpu = {shape(line) for line in (GPU / "decode.log").read_text().splitlines()}
    seen = {s for s in first_rank_shapes(served[1]) if s.startswith(("Decode batch", "Prefill batch"))}
    assert seen == {s.replace("G graph: False", "G graph: True") if s.startswith("Decode") else s for s in recorded}
    assert seen == gpu
    assert not seen & {s for s in plain if s.startswith("Decode")}


def test_the_numbers_of_a_decode_line_are_those_of_its_requests(served: tuple[Engine, str]) -> None:
    lengths = [float(x) for x in re.findall(r"accept len: ([\d.]+)", served[1])]
    rates = [float(x) for x in re.findall(r"accept rate: ([\d.]+)", served[1])]
    speeds = [float(x) for x in re.findall(r"gen throughput \(token/s\): ([\d.]+)", served[1])]
    assert len(lengths) >= 10
    assert sum(lengths) / len(lengths) == pytest.approx(1.86, abs=0.12)
    for length, rate in zip(lengths, rates, strict=True):
        assert rate == pytest.approx((length - 1) / 4, abs=0.01)
    assert max(speeds) < 110


def test_nccl_info_says_what_each_rank_got(bench: Bench) -> None:
    recorded = (GPU / "nccl_info_ll.log").read_text()
    assert re.search(r"\[1\] NCCL INFO NCCL_PROTO set by environment to LL", recorded)
    with start(bench, environment={"NCCL_DEBUG": "INFO", "NCCL_PROTO": "LL", "NCCL_NTHREADS": "256"}) as engine:
        engine.wait_healthy()
        for rank in (0, 1):
            for setting in ("NCCL_PROTO set by environment to LL", "NCCL_NTHREADS set by environment to 256"):
                assert re.search(rf":\d+:\d+ \[{rank}\] NCCL INFO {setting}\n", engine.text())


SAMPLE = re.compile(r"^(?P<name>[a-z_:0-9]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def families(text: str) -> dict[str, tuple[str, str]]:
    """Return family -> (type, help)."""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.M))
    return {name: (kind, helps[name]) for name, kind in types.items()}


def label_names(text: str) -> dict[str, set[tuple[str, ...]]]:
    found: dict[str, set[tuple[str, ...]]] = {}
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match:
            names = tuple(sorted(name for name, _ in LABEL.findall(match["labels"] or "")))
            found.setdefault(match["name"], set()).add(names)
    return found


def test_metrics_have_the_recorded_names_types_help_and_labels(served: tuple[Engine, str]) -> None:
    text = served[0].get("/metrics").text
    recorded = (CPU / "metrics_eagle3.txt").read_text()
    seen = families(text)
    timer = seen.pop("sglang:forward_execution_seconds_total")
    assert seen == families(recorded)
    assert timer == families((GPU / "metrics_device_timer.txt").read_text())["sglang:forward_execution_seconds_total"]
    labels = label_names(text)
    labels.pop("sglang:forward_execution_seconds_total")
    assert labels == label_names(recorded)


def test_a_plain_server_has_no_verify_counter(bench: Bench, served: tuple[Engine, str]) -> None:
    with start(bench, "--enable-metrics", tp=1) as engine:
        engine.wait_healthy()
        engine.generate("Plain.", 50)
        text = engine.get("/metrics").text
    assert families(text) == families((CPU / "metrics_base.txt").read_text())


def value(text: str, name: str, **labels: str) -> float:
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match and match["name"] == name:
            found = dict(LABEL.findall(match["labels"] or ""))
            if all(found.get(key) == wanted for key, wanted in labels.items()):
                return float(match["value"])
    raise AssertionError(f"no sample {name} {labels}")


def test_metrics_count_what_happened(served: tuple[Engine, str]) -> None:
    engine = served[0]
    before = engine.get("/metrics").text
    meta = engine.generate("Count these tokens, please.", 200)["meta_info"]
    after = engine.get("/metrics").text

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert grown("sglang:generation_tokens_total", is_streaming="false") == 200
    assert grown("sglang:prompt_tokens_total", is_streaming="false") == meta["prompt_tokens"]
    assert grown("sglang:num_requests_total", is_streaming="false") == 1
    assert grown("sglang:spec_verify_calls_total") == meta["spec_verify_ct"]
    assert grown("sglang:time_to_first_token_seconds_count", is_streaming="false") == 1
    assert grown("sglang:e2e_request_latency_seconds_sum") == pytest.approx(meta["e2e_latency"], rel=0.01)
    assert value(after, "sglang:num_requests_total", is_streaming="true") == 1
    assert value(after, "sglang:spec_num_steps") == 4
    assert value(after, "sglang:spec_num_draft_tokens") == 5
    draft = sum(
        grown("sglang:forward_execution_seconds_total", category=c) for c in ("eagle_draft", "eagle_draft_extend")
    )
    verify = grown("sglang:forward_execution_seconds_total", category="target_verify")
    assert 0.0 < draft / (draft + verify) < 0.05


def test_adaptive_speculation_writes_the_recorded_lines(
    bench: Bench, tmp_path: Path, served: tuple[Engine, str]
) -> None:
    config = tmp_path / "adaptive.json"
    config.write_text(json.dumps({"1": {"candidate_steps": [1, 5]}, "4": {"candidate_steps": [0, 1]}}))
    flags = [*speculative_flags(bench, steps=5), "--speculative-adaptive", "--speculative-adaptive-config", str(config)]
    with start(bench, *flags) as engine:
        engine.wait_healthy()
        assert engine.info()["speculative_adaptive"] is True
        body = {"text": ["All at once."] * 5, "sampling_params": {"max_new_tokens": 400, "temperature": 0}}
        assert engine.post("/generate", body).status_code == 200
        text = engine.text()
    recorded = {
        s for line in (CPU / "adaptive_changes.log").read_text().splitlines() if "daptive" in (s := shape(line))
    }
    seen = {s for s in first_rank_shapes(text) if "daptive" in s and "server_args" not in s and "speculative_" not in s}
    assert {s.replace("[#, #, #, #]", "[#, #]") for s in recorded} == seen
