"""A serving process from its first to its last second: warm-up, watchdog, faults that strike later, drain, death.

Source: SGLang 0.5.23 srt/entrypoints/http_server.py:2309-2600 (warm-up), srt/managers/tokenizer_manager.py:3505-3570
(drain) and :4072 (crash), srt/utils/watchdog.py:225-240; sigterm_idle.log, sigterm_busy.log, kill9_scheduler.log.
"""

import asyncio
import http.client
import json
import os
import signal
import threading
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette

from . import logs
from .nodes import Closed, Nodes
from .resolve import truthy
from .server import Server

FOLLOW_WALL_S = 0.5
# However fast virtual time runs, an idle server must stay idle.
POLL_WALL_S = 0.05
WARMUP_TRIES = 120
WATCHDOG_S = 300.0


class Lifecycle:
    """Keeps one server alive, and ends it as the real one ends."""

    def __init__(self, server: Server, nodes: Nodes) -> None:
        self._server = server
        self._nodes = nodes
        self._uvicorn: uvicorn.Server | None = None
        self._warmup = threading.Thread(target=self._run_warmup, name="warmup", daemon=True)
        self._tasks: list[asyncio.Task[None]] = []
        self._struck: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching = True

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        logs.line("Using fallback token IDs for yes/no (9693/2152)")
        for number, handler in (
            (signal.SIGTERM, self._on_sigterm),
            (signal.SIGQUIT, self._on_sigquit),
            (signal.SIGINT, self._leave),
        ):
            self._loop.add_signal_handler(number, handler)
        self._tasks = [
            asyncio.create_task(coroutine)
            for coroutine in (self._watchdog(), self._follow(), self._drain_when_told(), self._watch_nodes())
        ]
        self._warmup.start()
        yield
        # The warm-up thread keeps a process whose port could not be bound alive, as in the recordings.
        await asyncio.to_thread(self._warmup.join)
        for task in self._tasks:
            task.cancel()

    def attach(self, runner: uvicorn.Server) -> None:
        self._uvicorn = runner

    def _virtual(self, seconds: float) -> float:
        return seconds / self._server.clock.scale

    # Start

    def _run_warmup(self) -> None:
        arguments = self._server.plan.arguments
        if arguments["skip_server_warmup"]:
            self._tell_loop(self._mark_up)
        elif not self._warm_up():
            return
        with suppress(OSError, http.client.HTTPException):
            self._post("/freeze_gc", {}, 10.0, arguments["admin_api_key"] or arguments["api_key"])
        logs.line("The server is fired up and ready to roll!")
        self._tell_loop(self._mark_ready)

    def _warm_up(self) -> bool:
        key = self._server.plan.arguments["api_key"]
        last = ""
        for _ in range(WARMUP_TRIES):
            time.sleep(self._virtual(1.0))
            try:
                status, _ = self._call("GET", "/model_info", None, max(0.5, self._virtual(5.0)), key)
                if status == 200:
                    break
                last = f"status {status}"
            except (OSError, http.client.HTTPException):
                last = traceback.format_exc()
        else:
            return self._warmup_failed(last)
        try:
            path, body = self._warmup_request()
            status, answer = self._post(path, body, max(5.0, self._virtual(600.0)), key)
        except (OSError, http.client.HTTPException):
            return self._warmup_failed(traceback.format_exc())
        if status != 200:
            return self._warmup_failed(answer)
        self._tell_loop(self._mark_up)
        return True

    def _warmup_request(self) -> tuple[str, dict[str, Any]]:
        plan = self._server.plan
        if not plan.target.multimodal:
            sampling = {"temperature": 0, "max_new_tokens": 8}
            return "/generate", {"text": "The capital city of France is", "sampling_params": sampling}
        if plan.target.architecture == "KimiK25ForConditionalGeneration":
            logs.line("Using a 512x512 image for Kimi VLM startup warmup to compile MoonViT position interpolation.")
        content = [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
            {"type": "text", "text": "Describe the image."},
        ]
        name = plan.arguments["served_model_name"]
        message = {"role": "user", "content": content}
        return "/v1/chat/completions", {"model": name, "messages": [message], "max_tokens": 8, "temperature": 0.0}

    def _warmup_failed(self, why: str) -> bool:
        logs.line(f"Initialization failed. warmup error: {why}")
        self._server.ranks.kill_tree(include_parent=True)
        return False

    def _post(self, path: str, body: dict[str, Any], timeout_s: float, key: str | None) -> tuple[int, str]:
        return self._call("POST", path, body, timeout_s, key)

    def _call(
        self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float, key: str | None
    ) -> tuple[int, str]:
        arguments = self._server.plan.arguments
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(arguments["host"], arguments["host"])
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        connection = http.client.HTTPConnection(host, int(arguments["port"]), timeout=timeout_s)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        finally:
            connection.close()

    def _tell_loop(self, call: Any) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def _mark_up(self) -> None:
        self._server.status = "up"

    def _mark_ready(self) -> None:
        self._server.ready_at = self._server.clock.now()
        # Requests of the warm-up are not part of what a fault counts.
        self._server.scheduler.received = 0
        self._server.scheduler.serving = True
        self._apply_faults()

    # Faults that strike a running server

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(FOLLOW_WALL_S)
            before = self._server.knobs.names
            self._server.knobs.refresh()
            if self._server.knobs.names != before:
                self._server.scheduler.follow()
            self._apply_faults()

    def _apply_faults(self) -> None:
        server, knobs = self._server, self._server.knobs
        if server.ready_at is None:
            return
        now = server.clock.now()
        if knobs["crash_after_serving_s"] is not None and self._first("crash_after_serving_s"):
            delay = self._virtual(float(knobs["crash_after_serving_s"]))
            asyncio.get_running_loop().call_later(delay, server.ranks.kill_one)
        if knobs["health_503_for_s"] and self._first("health_503_for_s"):
            server.scheduler.busy_until = now + float(knobs["health_503_for_s"])
            self._tasks.append(asyncio.create_task(self._long_prefills()))
        if knobs["prefix_cache_warm"] and self._first("prefix_cache_warm"):
            server.scheduler.cache.warm = True
        if knobs["scheduler_dead_http_alive"] and self._first("scheduler_dead_http_alive"):
            self._watching = False
            server.scheduler.freeze()
            for child in server.ranks.schedulers:
                child.process.kill()
                child.process.wait()

    def _first(self, knob: str) -> bool:
        """Say whether a knob is seen for the first time."""
        fresh = knob not in self._struck
        self._struck.add(knob)
        return fresh

    async def _long_prefills(self) -> None:
        """Let the log advance while long prompts are prefilled in chunks."""
        server = self._server
        chunk = server.plan.arguments["chunked_prefill_size"]
        while server.clock.now() < server.scheduler.busy_until:
            queued = len(server.scheduler.batch.prefill)
            logs.line(
                f"Prefill batch, #new-seq: 1, #new-token: {chunk}, #cached-token: 0, token usage: 0.31, "
                f"#running-req: 0, #queue-req: {queued}, #pending-token: {chunk * 4}, cuda graph: False, "
                f"input throughput (token/s): {chunk / 1.02:.2f}",
                logs.rank_prefix(0, server.plan.ranks),
            )
            await asyncio.sleep(max(0.02, self._virtual(1.0)))

    # Death

    async def _watchdog(self) -> None:
        while True:
            await asyncio.sleep(max(POLL_WALL_S, self._virtual(1.0)))
            dead = self._server.ranks.first_dead() if self._watching else None
            if dead is not None:
                child, status = dead
                logs.line(
                    f"Subprocess {child.name} (pid={child.process.pid}) crashed with exit code {status}. "
                    "Triggering SIGQUIT for cleanup..."
                )
                self._on_sigquit()

    async def _watch_nodes(self) -> None:
        """End when another node is gone; hang when one of its ranks died and nobody there noticed."""
        if self._server.plan.nodes == 1:
            return
        hangs_since: float | None = None
        while self._watching:
            await asyncio.sleep(max(POLL_WALL_S, self._virtual(1.0)))
            server, now = self._server, self._server.clock.now()
            try:
                news = self._nodes.news()
            except Closed as closed:
                if self._watching:
                    server.scheduler_exception(str(closed))
                return
            if news == "stuck":
                server.scheduler.freeze()
            busy = server.scheduler.frozen and server.scheduler.active > 0
            hangs_since = (hangs_since if hangs_since is not None else now) if busy else None
            if hangs_since is not None and now - hangs_since > WATCHDOG_S:
                logs.line(f"Scheduler watchdog timeout (self.watchdog_timeout={WATCHDOG_S:.0f}, self.soft=False)")
                self._on_sigquit()

    def _on_sigquit(self) -> None:
        """End as the real engine after a child failed: nothing is answered any more, then SIGKILL of everything."""
        logs.line("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        logs.line("Sleeping 5 seconds before crash diagnostics to let GPU activity settle.")
        for child in self._server.ranks.schedulers:
            child.process.kill()
        time.sleep(self._virtual(5.0))
        logs.line("No live scheduler processes found; skipping py-spy and CUDA coredump.")
        self._server.ranks.kill_tree(include_parent=True)

    def _on_sigterm(self) -> None:
        if self._server.draining:
            return
        logs.line("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        self._server.draining = True
        if self._server.knobs["sigterm_freezes_streams"]:
            self._server.scheduler.freeze()

    async def _drain_when_told(self) -> None:
        server = self._server
        while not server.draining:
            await asyncio.sleep(max(POLL_WALL_S, self._virtual(5.0)))
        while True:
            remaining_rids = list(server.open_requests)
            if server.status == "unhealthy":
                logs.line("Signal SIGTERM received while health check failed. Force exiting.")
                break
            if truthy(os.environ.get("SGL_FORCE_SHUTDOWN")):
                logs.line("Signal SIGTERM received while force shutdown flag set. Force exiting.")
                break
            logs.line(
                f"Gracefully exiting... Remaining number of requests {len(remaining_rids)}. "
                f"Remaining requests {remaining_rids=}."
            )
            if not remaining_rids:
                break
            await asyncio.sleep(max(POLL_WALL_S, self._virtual(5.0)))
        self._watching = False
        self._nodes.shut_down()
        server.ranks.stop_schedulers(max(1.0, self._virtual(15.0)))
        server.ranks.kill_tree(include_parent=False)
        self._leave()

    def _leave(self) -> None:
        """Let uvicorn shut down; the children are killed after it."""
        self._watching = False
        assert self._uvicorn is not None
        self._uvicorn.should_exit = True
