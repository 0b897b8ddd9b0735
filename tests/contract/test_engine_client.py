"""The agent's HTTP client, against the simulated engine and against sockets that misbehave.

If these fail, rates are counted wrong (and every decision on speed with them), or a server that hangs or cuts its
answers holds up the gate or looks fine to it.
"""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from engine_bench import Bench, Engine, make_bench, start, wait_for

from ops.remote import engine_client

PROMPT = "The harbour master kept two books."
SCALE = 20.0
SIMULATED_TOKENS_S = 88.8
"""One user on the simulated plain server (the story's baseline), before the time scale."""


def quiet(event: object) -> None:
    """Progress is looked at where it is the subject."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = make_bench(tmp_path_factory.mktemp("client"))
    made.settings(time_scale=SCALE, load_s=0.2)
    return made


@pytest.fixture(scope="module")
def engine(bench: Bench) -> Iterator[Engine]:
    with start(bench, "--enable-metrics") as running:
        running.wait_healthy()
        yield running


def where(engine: Engine) -> dict[str, Any]:
    host, port = engine.url.removeprefix("http://").split(":")
    return {"address": host, "port": int(port)}


def generation(tokens: int = 64, text: str = PROMPT) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    return {"path": "/generate", "body": {"text": text, "sampling_params": sampling}}


def chat(tokens: int = 64) -> dict[str, Any]:
    body = {"model": "x", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": tokens, "temperature": 0}
    return {"path": "/v1/chat/completions", "body": {**body, "ignore_eos": True}}


def one(engine: Engine, wanted: dict[str, Any], **options: Any) -> dict[str, Any]:
    result = engine_client.batch(quiet, **where(engine), requests=[wanted], concurrency=1, timeout_s=20, **options)
    found: dict[str, Any] = result["completions"][0]
    return found


def test_streamed_and_whole_answers_are_the_same_tokens_counted_by_the_server(engine: Engine) -> None:
    whole, streamed = one(engine, generation()), one(engine, generation(), stream=True)
    assert whole["error"] == streamed["error"] == ""
    assert whole["output_ids"] == streamed["output_ids"]
    assert whole["text"] == streamed["text"]
    assert whole["completion_tokens"] == streamed["completion_tokens"] == len(whole["output_ids"]) == 64
    assert (whole["finish_reason"], streamed["finish_reason"]) == ("length", "length")


def test_the_first_token_comes_before_the_last_and_is_known_only_when_streamed(engine: Engine) -> None:
    tokens = 1024
    whole, streamed = one(engine, generation(tokens)), one(engine, generation(tokens), stream=True)
    assert whole["first_token_s"] is None
    assert streamed["started_s"] < streamed["first_token_s"] < streamed["ended_s"]
    # A client that took the last chunk for the first one would see nothing between them.
    written_s = tokens / SIMULATED_TOKENS_S / SCALE
    assert streamed["ended_s"] - streamed["first_token_s"] > written_s / 2


@pytest.mark.parametrize("stream", [False, True])
def test_chat_answers_are_counted_by_usage(engine: Engine, stream: bool) -> None:
    answer = one(engine, chat(), stream=stream)
    assert answer["error"] == ""
    assert answer["completion_tokens"] == 64
    assert answer["text"].strip()


def test_a_chunk_is_not_a_token(bench: Bench) -> None:
    flags = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(bench.draft)]
    flags += ["--speculative-num-steps", "5", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "6"]
    with start(bench, *flags) as speculative:
        speculative.wait_healthy()
        answer = one(speculative, generation(200), stream=True)
    assert answer["completion_tokens"] == 200
    assert answer["chunks"] < 180
    assert answer["meta"]["spec_verify_ct"] > 0


def test_requests_of_a_batch_run_together_and_come_back_in_order(engine: Engine) -> None:
    events: list[dict[str, Any]] = []
    requests = [generation(20 + i, f"({i}) {PROMPT}") for i in range(20)]
    result = engine_client.batch(events.append, **where(engine), requests=requests, concurrency=8, timeout_s=20)
    completions = result["completions"]
    assert [c["completion_tokens"] for c in completions] == [20 + i for i in range(20)]
    assert max(c["started_s"] for c in completions[:8]) < min(c["ended_s"] for c in completions)
    assert result["elapsed_s"] < sum(c["ended_s"] - c["started_s"] for c in completions) / 3
    assert events[-1] == {"completed": 20, "of": 20}


def test_a_repeated_prompt_is_cached_and_a_flush_makes_it_cold_again(engine: Engine) -> None:
    text = PROMPT * 20
    one(engine, generation(8, text))
    warm = one(engine, generation(8, text))
    assert warm["cached_tokens"] > 0.8 * warm["prompt_tokens"]
    assert engine_client.flush(quiet, **where(engine))["flushed"]
    assert one(engine, generation(8, text))["cached_tokens"] == 0


def test_a_flush_waits_for_the_running_request(engine: Engine) -> None:
    answers: list[dict[str, Any]] = []
    worker = threading.Thread(target=lambda: answers.append(one(engine, generation(4000))))
    worker.start()
    try:
        wait_for(lambda: engine.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1, 5, "a running request")
        found = engine_client.flush(quiet, **where(engine), timeout_s=20)
        worker.join(0.5)  # the engine is done with it, the answer may be on its way
        assert not worker.is_alive(), "the flush did not wait"
    finally:
        worker.join()
    assert found == {"flushed": True, "status": 200, "error": ""}
    assert answers[0]["completion_tokens"] == 4000


def test_json_and_text_bodies_and_unknown_paths_are_told_apart(engine: Engine) -> None:
    info = engine_client.request(quiet, **where(engine), method="GET", path="/server_info")
    assert (info["status"], info["body"]["status"]) == (200, "ready")
    metrics = engine_client.request(quiet, **where(engine), method="GET", path="/metrics")
    assert isinstance(metrics["body"], str)
    assert engine_client.request(quiet, **where(engine), method="GET", path="/nothing")["status"] == 404


def test_a_refused_request_carries_the_servers_words(engine: Engine) -> None:
    answer = one(engine, {"path": "/generate", "body": {"sampling_params": {}}})
    assert answer["status"] == 400
    assert answer["error"].startswith("HTTP 400: ")


def test_a_server_with_a_key_wants_it_and_gets_it_in_a_header(bench: Bench) -> None:
    key = "sentinel-key"
    with start(bench, "--api-key", key, headers={"Authorization": f"Bearer {key}"}) as locked:
        locked.wait_healthy()
        assert one(locked, generation(8))["status"] == 401
        assert one(locked, generation(8), api_key=key)["error"] == ""
        assert engine_client.flush(quiet, **where(locked), timeout_s=2)["status"] == 401
        assert engine_client.flush(quiet, **where(locked), api_key=key)["flushed"]


def test_a_killed_server_loses_its_requests_and_nothing_hangs(bench: Bench) -> None:
    with start(bench) as dying:
        dying.wait_healthy()
        threading.Timer(0.15, dying.process.kill).start()
        requests = [generation(400, f"({i})") for i in range(8)]
        result = engine_client.batch(quiet, **where(dying), requests=requests, concurrency=4, timeout_s=20)
    assert all(c["error"] for c in result["completions"])
    assert result["elapsed_s"] < 10


# sockets that misbehave


def take_request(connection: socket.socket) -> None:
    """Read one request to its end: closing over unread bytes would reset the connection."""
    with connection.makefile("rb") as stream:
        length = 0
        while line := stream.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        stream.read(length)


@contextmanager
def listening(answer: bytes, hold: bool = False) -> Iterator[dict[str, Any]]:
    """Serve `answer` to whoever connects; keep the connection open with `hold`."""
    released = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    take_request(connection)
                    connection.sendall(answer)
                    if hold:
                        released.wait(10)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield {"address": "127.0.0.1", "port": server.getsockname()[1]}
        released.set()
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def stream_of(*chunks: object, done: bool) -> bytes:
    lines = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    body = b"".join(lines) + (b"data: [DONE]\n\n" if done else b"")
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + body


def ask(place: dict[str, Any], timeout_s: float = 5.0, stream: bool = True) -> dict[str, Any]:
    result = engine_client.batch(
        quiet, **place, requests=[generation()], concurrency=1, timeout_s=timeout_s, stream=stream
    )
    found: dict[str, Any] = result["completions"][0]
    return found


PART = {"text": "a", "output_ids": [1], "meta_info": {"completion_tokens": 1, "finish_reason": None}}
LAST = {"text": "ab", "output_ids": [1, 2], "meta_info": {"completion_tokens": 2, "finish_reason": {"type": "length"}}}


def test_a_stream_that_ends_without_done_is_cut() -> None:
    with listening(stream_of(PART, done=False)) as place:
        assert "before [DONE]" in ask(place)["error"]


def test_a_stream_that_is_done_without_a_finish_reason_is_cut() -> None:
    with listening(stream_of(PART, done=True)) as place:
        assert "finish reason" in ask(place)["error"]


def test_segments_of_an_incremental_stream_are_put_together() -> None:
    tail = {**LAST, "text": "b", "output_ids": [2]}
    for chunks in ((PART, LAST), (PART, tail)):
        with listening(stream_of(*chunks, done=True)) as place:
            answer = ask(place)
        assert (answer["error"], answer["text"], answer["output_ids"]) == ("", "ab", [1, 2])


def test_an_error_inside_a_stream_is_an_error() -> None:
    broken = {"error": {"message": "out of memory", "type": "x", "code": 500, "retryable": False}}
    with listening(stream_of(PART, broken, done=True)) as place:
        assert ask(place)["error"] == "out of memory"


def test_an_answer_that_counts_no_tokens_is_not_counted_by_its_chunks() -> None:
    with listening(stream_of({"text": "a b c"}, done=True)) as place:
        answer = ask(place)
    assert answer["completion_tokens"] is None
    assert "did not count" in answer["error"]


def test_the_deadline_is_of_the_whole_answer_and_not_of_each_byte() -> None:
    with listening(stream_of(PART, done=False), hold=True) as place:
        answer = ask(place, timeout_s=0.5)
    assert "within 0.5 s" in answer["error"]
    assert 0.4 < answer["ended_s"] - answer["started_s"] < 2


def test_a_server_that_hangs_costs_one_deadline_and_not_one_for_each_request() -> None:
    with listening(stream_of(PART, done=False), hold=True) as place:
        result = engine_client.batch(
            quiet,
            **place,
            requests=[generation()] * 12,
            concurrency=2,
            timeout_s=0.4,
            stream=True,
            give_up_after=1,
        )
    errors = [c["error"] for c in result["completions"]]
    assert result["elapsed_s"] < 2
    assert sum("not sent" in error for error in errors) >= 8
    assert all(errors)


def test_a_body_shorter_than_promised_is_cut() -> None:
    with listening(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{") as place:
        assert ask(place, stream=False)["error"]


def test_nothing_on_the_port_is_said_in_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = engine_client.request(quiet, address="127.0.0.1", port=port, method="GET", path="/health", timeout_s=2)
    assert found["status"] is None
    assert "nothing listens" in found["error"]
