"""The HTTP side of the simulated engine: status codes, keys, streams, who may call what.

If this fails, gates and drain logic that work in the sandbox do not work against the real server.
"""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from engine_bench import CPU, Bench, Engine, make_bench, speculative_flags, start, wait_for

KEYS = {"api": {"Authorization": "Bearer user-key"}, "admin": {"Authorization": "Bearer admin-key"}, "none": {}}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return make_bench(tmp_path_factory.mktemp("http"))


@pytest.fixture(scope="module")
def engine(bench: Bench) -> Iterator[Engine]:
    bench.settings(time_scale=20.0, load_s=0.2)
    flags = ["--enable-metrics", "--max-running-requests", "16", "--served-model-name", "kimi"]
    with start(bench, *speculative_flags(bench), *flags) as running:
        running.wait_healthy()
        yield running


def recorded(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CPU / name).read_text())
    return loaded


def same_keys(seen: Any, real: Any, path: str = "") -> list[str]:
    """Return where two JSON bodies differ in keys or shape; lists are compared by their first element."""
    if not isinstance(real, dict | list):
        return []
    if type(seen) is not type(real) or (real and not seen):
        return [f"{path} is {seen!r}"]
    if isinstance(real, dict):
        differ = [f"{path}.{key}" for key in seen.keys() ^ real.keys()]
        return differ + [
            line for key in seen.keys() & real.keys() for line in same_keys(seen[key], real[key], f"{path}.{key}")
        ]
    return same_keys(seen[0], real[0], f"{path}[0]") if real else []


def test_server_info_has_the_recorded_keys(engine: Engine) -> None:
    engine.generate("Fill the averages.", 200)
    info = engine.info()
    assert info.pop("SIMULATED") == "x 20"
    assert same_keys(info, recorded("server_info_eagle3.json")) == []
    assert "--max-running-requests 16" in info["launch_command"]
    assert info["internal_states"][0]["avg_spec_accept_length"] == pytest.approx(1.755, abs=0.25)


@pytest.mark.parametrize(
    ("path", "name"),
    [("/model_info", "model_info.json"), ("/v1/models", "v1_models.json"), ("/v1/loads", "v1_loads.json")],
)
def test_a_body_has_the_recorded_keys(engine: Engine, path: str, name: str) -> None:
    assert same_keys(engine.get(path).json(), recorded(name)) == []


def test_generate_has_the_recorded_keys(engine: Engine) -> None:
    body = engine.generate("A prompt that no recording holds.", 77)
    assert same_keys(body, recorded("generate_eagle3_step3.json")) == []
    assert len(body["output_ids"]) == body["meta_info"]["completion_tokens"] == 77


def test_generate_without_speculation_and_metrics_has_fewer_keys(bench: Bench) -> None:
    with start(bench, tp=1) as plain:
        plain.wait_healthy()
        meta = plain.generate("Nothing is drafted here.", 30)["meta_info"]
        assert plain.get("/metrics").status_code == 404
    real = set(recorded("generate_base.json")["meta_info"])
    assert not {key for key in meta if key.startswith("spec_")}
    assert set(meta) < real
    assert "e2e_latency" in meta
    assert "decode_throughput" not in meta


@pytest.mark.parametrize("path", ["/get_model_info", "/get_server_info"])
def test_a_deprecated_path_answers_and_warns(engine: Engine, path: str) -> None:
    assert engine.get(path).json().keys() == engine.get(path.replace("get_", "")).json().keys()
    assert f"Endpoint '{path}' is deprecated" in engine.text()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/ready", 200),
        ("GET", "/ping", 200),
        ("GET", "/health", 200),
        ("GET", "/health_generate", 200),
        ("GET", "/v1/models/kimi", 200),
        ("GET", "/v1/models/other", 404),
        ("GET", "/get_load", 404),
        ("GET", "/generate", 405),
        ("POST", "/generate", 400),
    ],
)
def test_an_endpoint_has_its_status(engine: Engine, method: str, path: str, status: int) -> None:
    response = requests.request(method, engine.url + path, timeout=20)
    assert response.status_code == status
    if path == "/v1/models/other":
        assert response.json()["error"]["code"] == "model_not_found"


def test_health_takes_about_a_virtual_second(engine: Engine) -> None:
    began = time.monotonic()
    assert engine.get("/health").status_code == 200
    assert 0.9 < (time.monotonic() - began) * 20 < 6


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"text": "x", "sampling_params": {"temperature": -1}}, "temperature must be non-negative"),
        ({"text": "x", "sampling_params": {"max_new_tokens": -3}}, "max_new_tokens must be at least 0"),
        ({"text": "x", "sampling_params": {"max_new_tokens": 200000}}, "maximum context length of 131072 tokens"),
        ({"prompt": "x"}, "Either text, input_ids or input_embeds should be provided."),
    ],
)
def test_a_bad_request_is_400_with_the_real_words(engine: Engine, body: dict[str, Any], words: str) -> None:
    response = engine.post("/generate", body)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_openai_endpoints_need_json(engine: Engine, path: str) -> None:
    response = requests.post(engine.url + path, data=b"plain", headers={"Content-Type": "text/plain"}, timeout=20)
    assert response.status_code == 400
    assert response.json()["object"] == "error"


def test_completions_and_chat_have_the_recorded_keys(engine: Engine) -> None:
    text = engine.post("/v1/completions", {"model": "kimi", "prompt": "Once there was", "max_tokens": 20}).json()
    chat_body = {"model": "kimi", "messages": [{"role": "user", "content": "Greet me."}], "max_tokens": 20}
    chat = engine.post("/v1/chat/completions", chat_body).json()
    assert same_keys(text, recorded("completion.json")) == []
    assert same_keys(chat, recorded("chat.json")) == []
    for body in (text, chat):
        assert body["usage"]["completion_tokens"] == 20
        assert body["choices"][0]["finish_reason"] == "length"


def events(response: requests.Response) -> list[str]:
    return [line[6:].decode() for line in response.iter_lines() if line.startswith(b"data: ")]


def test_a_native_stream_is_cumulative_and_shows_several_tokens_at_once(engine: Engine) -> None:
    body = {"text": "Stream me.", "stream": True, "sampling_params": {"temperature": 0, "max_new_tokens": 900}}
    lines = events(engine.post("/generate", body, stream=True))
    chunks = [json.loads(line) for line in lines[:-1]]
    counts = [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
    assert lines[-1] == "[DONE]"
    assert counts == sorted(counts)
    assert counts[0] < 900 == counts[-1]
    assert max(b - a for a, b in itertools.pairwise(counts)) > 1
    assert len(chunks) < 900
    assert chunks[-1]["text"] == engine.generate("Stream me.", 900)["text"]
    assert chunks[0]["meta_info"]["finish_reason"] is None
    assert chunks[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 900}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("with_usage", [True, False])
def test_an_openai_stream_has_usage_only_when_asked(engine: Engine, path: str, with_usage: bool) -> None:
    body: dict[str, Any] = {"model": "kimi", "stream": True, "max_tokens": 60, "temperature": 0}
    body |= {"prompt": "Count."} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "Count."}]}
    if with_usage:
        body["stream_options"] = {"include_usage": True}
    lines = events(engine.post(path, body, stream=True))
    chunks = [json.loads(line) for line in lines[:-1]]
    usages = [chunk["usage"] for chunk in chunks if chunk["usage"]]
    assert lines[-1] == "[DONE]"
    assert [u["completion_tokens"] for u in usages] == ([60] if with_usage else [])
    whole = engine.post(path, {**body, "stream": False}).json()["choices"][0]
    deltas = [c["choices"][0] for c in chunks if c["choices"]]
    if path == "/v1/completions":
        assert "".join(d["text"] for d in deltas) == whole["text"]
    else:
        assert deltas[0]["delta"]["role"] == "assistant"
        assert "".join(d["delta"]["content"] or "" for d in deltas) == whole["message"]["content"]
    assert deltas[-1]["finish_reason"] == "length"


def test_greedy_text_repeats_and_parts_from_the_baseline_late(bench: Bench, engine: Engine) -> None:
    prompts = [f"Prompt {i} of the comparison." for i in range(4)]
    speculative = [engine.generate(p, 500)["output_ids"] for p in prompts]
    assert engine.generate(prompts[0], 500)["output_ids"] == speculative[0]
    bench.settings(time_scale=100.0, load_s=0.0)
    with start(bench) as plain:
        plain.wait_healthy()
        baseline = [plain.generate(p, 500)["output_ids"] for p in prompts]
    for left, right in zip(speculative, baseline, strict=True):
        equal = next((i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b), 500)
        assert equal >= 26
    assert any(left != right for left, right in zip(speculative, baseline, strict=True))


def test_a_stop_string_ends_the_text(engine: Engine) -> None:
    body = engine.generate("Stop early.", 300, stop=["."])
    assert body["text"].count(".") == 1
    assert body["meta_info"]["finish_reason"]["type"] == "stop"
    assert body["meta_info"]["completion_tokens"] < 300


def test_a_repeated_prompt_is_cached_until_the_flush(engine: Engine) -> None:
    prompt = "The quick survey of caches begins here and goes on for a while."
    first = engine.generate(prompt, 5)["meta_info"]
    second = engine.generate(prompt, 5)["meta_info"]
    assert engine.post("/flush_cache").status_code == 200
    third = engine.generate(prompt, 5)["meta_info"]
    assert (first["cached_tokens"], third["cached_tokens"]) == (0, 0)
    assert second["cached_tokens"] == second["prompt_tokens"] - 1
    assert second["first_token_latency"] < first["first_token_latency"] / 3


def test_flushing_while_a_request_runs_is_400(engine: Engine) -> None:
    with background(engine, {"text": "Long one.", "sampling_params": {"max_new_tokens": 2000, "temperature": 0}}):
        wait_for(lambda: engine.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1, 5, "a running request")
        assert engine.post("/flush_cache").status_code == 400
        assert engine.post("/abort_request", {"abort_all": True}).status_code == 200
        wait_for(lambda: engine.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 0, 5, "the abort")
    assert engine.get("/flush_cache").status_code == 200


def background(engine: Engine, body: dict[str, Any]) -> Any:
    class Running:
        def __enter__(self) -> "Running":
            self.answer: Any = None
            self.thread = threading.Thread(target=self.run)
            self.thread.start()
            return self

        def run(self) -> None:
            self.answer = engine.post("/generate", body)

        def __exit__(self, *_: object) -> None:
            self.thread.join(20)

    return Running()


def test_an_aborted_request_ends_with_its_reason(engine: Engine) -> None:
    body = {"rid": "abort-me", "text": "Go on.", "sampling_params": {"max_new_tokens": 3000, "temperature": 0}}
    with background(engine, body) as running:
        wait_for(lambda: engine.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1, 5, "a running request")
        engine.post("/abort_request", {"rid": "abort-me"})
    meta = running.answer.json()["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert meta["completion_tokens"] < 3000


def test_a_client_that_leaves_frees_its_place(engine: Engine) -> None:
    body = {"text": "Bye.", "stream": True, "sampling_params": {"max_new_tokens": 5000, "temperature": 0}}
    response = engine.post("/generate", body, stream=True)
    next(response.iter_lines())
    response.close()
    wait_for(lambda: engine.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 0, 5, "the abort")


def test_requests_beyond_the_limit_wait(engine: Engine) -> None:
    body = {"text": ["Wait."] * 20, "sampling_params": {"max_new_tokens": 300, "temperature": 0}}
    with background(engine, body) as running:
        wait_for(lambda: engine.get("/v1/loads").json()["loads"][0]["num_waiting_reqs"] == 4, 5, "four in the queue")
        assert engine.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 16
    assert [r["meta_info"]["completion_tokens"] for r in running.answer.json()] == [300] * 20


@pytest.fixture(scope="module")
def locked(bench: Bench) -> Iterator[Engine]:
    bench.settings(time_scale=100.0, load_s=0.0)
    with start(bench, "--api-key", "user-key", "--admin-api-key", "admin-key", tp=1) as running:
        running.wait_healthy()
        yield running


@pytest.mark.parametrize(
    ("path", "none", "api", "admin"),
    [
        ("/model_info", 401, 200, 401),
        ("/server_info", 401, 200, 401),
        ("/v1/models", 401, 200, 401),
        ("/flush_cache", 401, 401, 200),
        ("/health", 200, 200, 200),
        ("/ready", 200, 200, 200),
    ],
)
def test_each_key_opens_what_it_opens_in_the_real_engine(
    locked: Engine, path: str, none: int, api: int, admin: int
) -> None:
    """Source: seen on 0.5.23 with both keys set."""
    seen = [
        requests.get(locked.url + path, headers=KEYS[key], timeout=20).status_code for key in ("none", "api", "admin")
    ]
    assert seen == [none, api, admin]
