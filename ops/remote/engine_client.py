"""HTTP to the engine, from the host itself, so that the network between operator and host is in no measurement.

All durations are wall seconds of the host's monotonic clock. Tokens are counted by the server's own `usage` or
`meta_info`, never by stream chunks: with speculation a chunk carries several tokens.
"""

import http.client
import json
import socket
import threading
import time

from ops.remote import keys, probe

GENERATE = "/generate"
FLUSH = "/flush_cache"
# Bodies beyond this are cut: /metrics and /server_info are some 100 KB, an answer larger than this is no engine's.
MAX_BODY_BYTES = 16 * 1024 * 1024


class Cut(Exception):
    """The connection ended before the answer did."""


def request(emit, *, address, port, method, path, body=None, timeout_s=10.0, api_key=None):
    """One request: {status, body, elapsed_s, error}. `body` is JSON where it parses, else text; status None: no answer.

    Raises nothing for what a server may do: refused, cut, late and unreadable answers are results.
    """
    started = time.monotonic()
    try:
        status, raw = _exchange(address, port, method, path, body, started + timeout_s, api_key)
    except (OSError, http.client.HTTPException, Cut) as error:
        return {
            "status": None,
            "body": None,
            "elapsed_s": time.monotonic() - started,
            "error": _words(error, timeout_s),
        }
    return {"status": status, "body": _parsed(raw), "elapsed_s": time.monotonic() - started, "error": ""}


def flush(emit, *, address, port, timeout_s=30.0, api_key=None):
    """Empty the prefix cache: {flushed, status, error}. A busy engine answers 400 and is asked again in time."""
    deadline = time.monotonic() + timeout_s
    pause = 0.02
    while True:
        reply = request(
            emit,
            address=address,
            port=port,
            method="POST",
            path=FLUSH,
            timeout_s=max(0.1, deadline - time.monotonic()),
            api_key=api_key,
        )
        busy = reply["status"] == 400
        if not busy or time.monotonic() + pause >= deadline:
            error = reply["error"] or ("" if reply["status"] == 200 else f"{FLUSH} answered {reply['status']}")
            return {"flushed": reply["status"] == 200, "status": reply["status"], "error": error}
        time.sleep(pause)
        pause = min(pause * 2, 1.0)


def batch(emit, *, address, port, requests, concurrency, timeout_s, stream=False, give_up_after=None, api_key=None):
    """Send `requests` [{path, body}] with `concurrency` in flight: {completions, elapsed_s}, in the order asked.

    `timeout_s` is each request's. The first `concurrency` requests leave together. Emits {completed, of} every tenth.
    Once `give_up_after` requests failed the rest is not sent: a server that hangs would cost a deadline for each.
    A completion: {status, error, text, output_ids, prompt_tokens, completion_tokens, cached_tokens, finish_reason,
    started_s, first_token_s, ended_s, chunks, meta}; seconds since the batch began, first_token_s None without stream.
    """
    total = len(requests)
    completions = [None] * total
    workers = max(1, min(concurrency, total))
    gate = threading.Barrier(workers)
    turn = threading.Lock()
    state = {"next": 0, "done": 0, "failed": 0}
    began = time.monotonic()

    def take():
        with turn:
            index = state["next"]
            state["next"] += 1
        return index

    def finish(index, completion):
        completions[index] = completion
        with turn:
            state["done"] += 1
            state["failed"] += bool(completion["error"])
            done = state["done"]
        if total >= 10 and done % (total // 10) == 0:
            emit({"completed": done, "of": total})

    def work():
        gate.wait()
        while (index := take()) < total:
            if give_up_after is not None and state["failed"] >= give_up_after:
                finish(index, _not_sent(requests[index], time.monotonic() - began, state["failed"]))
            else:
                finish(index, _generate(address, port, requests[index], began, timeout_s, stream, api_key))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"completions": completions, "elapsed_s": time.monotonic() - began}


def _not_sent(wanted, now, failed):
    found = _Collected(wanted["path"] != GENERATE).result()
    words = f"not sent: {failed} requests failed before"
    return {**found, "status": None, "error": words, "started_s": now, "first_token_s": None, "ended_s": now}


def _generate(address, port, wanted, began, timeout_s, stream, api_key):
    chat = wanted["path"] != GENERATE
    body = dict(wanted["body"])
    if stream:
        body["stream"] = True
        if chat:
            body["stream_options"] = {"include_usage": True}
    found = _Collected(chat)
    started = time.monotonic()
    status, error = None, ""
    connection = http.client.HTTPConnection(probe.connectable(address), port, timeout=timeout_s)
    try:
        status, error = _receive(connection, wanted["path"], body, started + timeout_s, stream, api_key, found)
    except (OSError, http.client.HTTPException, Cut) as problem:
        error = _words(problem, timeout_s)
    finally:
        connection.close()
    ended = time.monotonic()
    first = None if found.first is None else found.first - began
    return {
        **found.result(),
        "status": status,
        "error": error or found.problem(),
        "started_s": started - began,
        "first_token_s": first,
        "ended_s": ended - began,
    }


def _receive(connection, path, body, deadline, stream, api_key, found):
    """Feed the answer into `found`; return (status, error)."""
    sock, response = _send(connection, "POST", path, body, deadline, api_key)
    if response.status != 200:
        return (
            response.status,
            f"HTTP {response.status}: {_read(sock, response, deadline)[:300].decode(errors='replace')}",
        )
    if not stream:
        answer = _parsed(_read(sock, response, deadline))
        if not isinstance(answer, dict):
            return 200, "the answer is no JSON object"
        found.add(answer, None)
        return 200, ""
    done = False
    while not done:
        _allow(sock, deadline)
        line = response.readline()
        if not line:
            raise Cut("the stream ended before [DONE]")
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        done = data == b"[DONE]"
        if not done:
            found.add(json.loads(data), time.monotonic())
    return 200, ""


class _Collected:
    """What the chunks of one answer add up to."""

    def __init__(self, chat):
        self.chat = chat
        self.first = None
        self.chunks = 0
        self.text = ""
        self.ids = []
        self.meta = {}
        self.finish = None
        self.error = ""

    def add(self, chunk, at):
        if chunk.get("error"):
            error = chunk["error"]
            self.error = str(error.get("message", error) if isinstance(error, dict) else error)
            return
        (self._add_chat if self.chat else self._add_generate)(chunk, at)

    def _arrived(self, at):
        self.chunks += 1
        if self.first is None:
            self.first = at

    def _add_generate(self, chunk, at):
        self.meta = chunk.get("meta_info") or self.meta
        self.finish = self.meta.get("finish_reason") or self.finish
        ids = chunk.get("output_ids") or []
        if ids or chunk.get("text"):
            self._arrived(at)
        # Chunks are cumulative unless the server runs with --incremental-streaming-output: then each brings the new
        # part only. Source: SGLang 0.5.23 srt/managers/tokenizer_manager.py:2625-2664.
        if len(ids) >= (self.meta.get("completion_tokens") or 0):
            self.ids, self.text = list(ids), chunk.get("text") or ""
        else:
            self.ids += ids
            self.text += chunk.get("text") or ""

    def _add_chat(self, chunk, at):
        self.meta = {**self.meta, **(chunk.get("usage") or {})}
        for choice in chunk.get("choices") or []:
            part = choice.get("message") or choice.get("delta") or {}
            content = part.get("content") or part.get("reasoning_content") or choice.get("text") or ""
            if content:
                self._arrived(at)
                self.text += content
            self.finish = choice.get("finish_reason") or self.finish

    def problem(self):
        if self.error:
            return self.error
        if self.meta.get("completion_tokens") is None:
            return "the server did not count its tokens (no usage, no meta_info)"
        return "" if self.finish else "the answer has no finish reason: it was cut"

    def result(self):
        finish = self.finish.get("type") if isinstance(self.finish, dict) else self.finish
        details = self.meta.get("prompt_tokens_details") or {}
        return {
            "text": self.text,
            "output_ids": self.ids,
            "prompt_tokens": self.meta.get("prompt_tokens"),
            "completion_tokens": self.meta.get("completion_tokens"),
            "cached_tokens": self.meta.get("cached_tokens", details.get("cached_tokens")),
            "finish_reason": finish,
            "chunks": self.chunks,
            "meta": self.meta,
        }


def _exchange(address, port, method, path, body, deadline, api_key):
    connection = http.client.HTTPConnection(
        probe.connectable(address), port, timeout=max(0.01, deadline - time.monotonic())
    )
    try:
        sock, response = _send(connection, method, path, body, deadline, api_key)
        return response.status, _read(sock, response, deadline)
    finally:
        connection.close()


def _send(connection, method, path, body, deadline, api_key):
    key = keys.read(api_key)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    connection.connect()
    sock = connection.sock
    _allow(sock, deadline)
    connection.request(method, path, body=data, headers=headers)
    _allow(sock, deadline)
    return sock, connection.getresponse()


def _read(sock, response, deadline):
    parts, size = [], 0
    while size < MAX_BODY_BYTES:
        _allow(sock, deadline)
        part = response.read1(1 << 16)
        if not part:
            break
        parts.append(part)
        size += len(part)
    if response.length:
        raise Cut(f"the answer ended {response.length} bytes early")
    return b"".join(parts)


def _allow(sock, deadline):
    """Give the next read what is left of the deadline: a socket's own timeout would start anew with every byte."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise socket.timeout("deadline")
    sock.settimeout(left)


def _parsed(raw):
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")


def _words(error, timeout_s):
    if isinstance(error, socket.timeout):
        return f"no complete answer within {timeout_s:.1f} s"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    return f"{type(error).__name__}: {error}".rstrip(": ")
