"""The state of one running server, and how a request goes through it."""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request as HttpRequest

from . import requests as r
from . import text
from .clock import Clock
from .knobs import Knobs
from .load import Loaded, scheduler_traceback
from .logs import line, rank_prefix
from .models import shape_error, wired_right
from .ranks import Ranks
from .requests import Request
from .resolve import Plan, truthy
from .scheduler import Scheduler
from .settings import Settings

MEMORY_FAULT = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
INDEX_FAULT = "torch.AcceleratorError: CUDA error: device-side assert triggered"


class BadRequest(Exception):
    """The client asked for something that the engine refuses with status 400."""


@dataclass
class Server:
    plan: Plan
    settings: Settings
    knobs: Knobs
    clock: Clock
    ranks: Ranks
    loaded: Loaded
    scheduler: Scheduler
    status: str = "starting"
    draining: bool = False
    paused: bool = False
    crash_on_next: bool = False
    ready_at: float | None = None
    open_requests: dict[str, Request] = field(default_factory=dict)

    # Requests

    def new_request(self, body: Mapping[str, Any], prompt: Sequence[int], *, rid: str | None = None) -> Request:
        """Return the request for a prompt; its answer is known from here on, only the time is still to pass.

        Raises:
            BadRequest: for sampling parameters or lengths that the engine refuses.
        """
        sampling: Mapping[str, Any] = body.get("sampling_params") or {}
        temperature = _number(sampling.get("temperature"), 1.0, "temperature")
        max_new = int(_number(sampling.get("max_new_tokens"), 128, "max_new_tokens"))
        if temperature < 0:
            raise BadRequest(f"temperature must be non-negative, got {temperature}.")
        if max_new < 0:
            raise BadRequest(f"max_new_tokens must be at least 0, got {max_new}.")
        self._check_lengths(len(prompt), max_new)
        rid = rid or str(body.get("rid") or r.new_rid())
        speculative = self.plan.speculative
        branch = f"{self.plan.steps}:{self.plan.topk}" if speculative else None
        nonce = f"{self.settings.seed}:{self.scheduler.received}"
        garbage = self.knobs["garbage"] if self.ready_at is not None else None
        pieces = r.write_pieces(prompt, max(1, max_new), temperature, branch, garbage, nonce)
        stops = sampling.get("stop") or []
        pieces, matched = r.stop_early(pieces, [stops] if isinstance(stops, str) else stops)
        cut = self._cut(len(pieces))
        seed = f"{self.settings.seed}:{text.fingerprint(prompt)}:{temperature}:{self.scheduler.received}"
        return Request(
            rid=rid,
            prompt=prompt,
            max_new_tokens=max_new,
            temperature=temperature,
            streaming=bool(body.get("stream")),
            pieces=pieces[:cut] if cut else pieces,
            accepted=r.draw_steps(seed, self.scheduler.chances(temperature), cut or len(pieces), speculative),
            speculative=speculative,
            finish=f"stop:{matched}" if matched else "length",
            cut=bool(cut),
        )

    def _check_lengths(self, prompt: int, max_new: int) -> None:
        limit = self.plan.context_len
        if prompt >= limit:
            raise BadRequest(f"The input ({prompt} tokens) is longer than the model's context length ({limit} tokens).")
        if prompt + max_new > limit:
            raise BadRequest(
                f"Requested token count exceeds the model's maximum context length of {limit} tokens. You requested a "
                f"total of {prompt + max_new} tokens: {prompt} tokens from the input messages and {max_new} tokens for "
                "the completion. Please reduce the number of tokens in the input messages or the completion to fit "
                "within the limit."
            )

    def _cut(self, tokens: int) -> int:
        share = self.knobs["truncate_streams"]
        if not share or self.scheduler.active < int(self.knobs["truncate_min_running"] or 4):
            return 0
        return max(1, int(tokens * float(share)))

    def submit(self, request: Request, arrived_at: float) -> None:
        """Hand a request to the scheduler; wrong shapes and deadly faults strike here.

        ``arrived_at`` is when HTTP saw it: what this process spends on parsing is part of the time to first token.
        """
        self.open_requests[request.rid] = request
        self.scheduler.submit(request, arrived_at)
        if request.health_probe:
            return
        fatal = self._fatal(request)
        if fatal is not None:
            self.scheduler_exception(fatal, arrived_at)

    def _fatal(self, request: Request) -> str | None:
        plan = self.plan
        if self.crash_on_next:
            return str(self.knobs["crash_message"] or MEMORY_FAULT)
        if plan.draft is not None:
            mismatch = shape_error(plan.target, plan.draft, len(request.prompt))
            if mismatch is not None:
                return f"RuntimeError: {mismatch}"
            if self.knobs["long_context_crash"] and len(request.prompt) > plan.draft.context:
                return INDEX_FAULT
        limit = self.knobs["crash_on_prompt_tokens_over"]
        if limit is not None and len(request.prompt) > int(limit):
            return INDEX_FAULT
        count = self.knobs["crash_after_requests"]
        if count is not None and self.ready_at is not None and self.scheduler.received >= int(count):
            return MEMORY_FAULT
        return None

    def scheduler_exception(self, message: str, at: float | None = None) -> None:
        """Let rank 0 fail as a scheduler does: traceback, then SIGQUIT to this process. at: the moment of the request
        that killed it, which a busy machine must not answer first.
        """
        line(scheduler_traceback(message), rank_prefix(0, self.plan.ranks))
        self.scheduler.freeze(at)
        self.ranks.fail()

    async def follow(self, request: Request, http: HttpRequest) -> AsyncIterator[Request]:
        """Yield the request whenever it has news, and at its end; an absent client aborts it."""
        gone = asyncio.create_task(_disconnected(http))
        try:
            while not request.done:
                news = asyncio.create_task(request.news.wait())
                await asyncio.wait({news, gone}, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if gone.done() and not request.done:
                    line(
                        "[http_server] Error: Request is disconnected from the client side (type 1). "
                        f"Abort request obj.rid={request.rid!r}"
                    )
                    self.scheduler.abort(request, "client disconnected")
                    return
                request.news.clear()
                if not request.done:
                    yield request
            yield request
        finally:
            gone.cancel()
            if not request.done:
                self.scheduler.abort(request, "client disconnected")
            self.open_requests.pop(request.rid, None)

    async def finish(self, request: Request, http: HttpRequest) -> None:
        """Wait for the end of a request."""
        async for _ in self.follow(request, http):
            pass

    # Health

    @property
    def probes(self) -> bool:
        """Say whether /health sends a request; switched off, it answers 200 without asking the scheduler."""
        return truthy(os.environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "true"))

    async def healthy(self) -> bool:
        """Send a one-token probe and wait for any sign of the scheduler.  Source: http_server.py:721-799."""
        if self.draining:
            line("Health check request received during shutdown. Returning 503.")
            return False
        if self.status == "starting":
            return False
        began = self.clock.now()
        if began < self.scheduler.busy_until:
            await asyncio.sleep(1.0 / self.clock.scale)
            return self.clock.now() >= self.scheduler.busy_until
        probe = self.new_request(
            {"sampling_params": {"max_new_tokens": 1, "temperature": 0.0}}, [0], rid=f"{r.HEALTH_PREFIX}_{r.new_rid()}"
        )
        self.scheduler.submit(probe, began)
        timeout = float(os.environ.get("SGLANG_HEALTH_CHECK_TIMEOUT", "20"))
        while self.clock.now() < began + timeout:
            await asyncio.sleep(1.0 / self.clock.scale)
            if self.scheduler.heard_since(began):
                self.status = "up"
                return True
        self.scheduler.abort(probe, "health check timed out")
        tic = time.strftime("%H:%M:%S")
        line(
            f"Health check failed. Server couldn't get a response from detokenizer for last {timeout:.0f} seconds. "
            f"tic start time: {tic}. last_heartbeat time: {tic}"
        )
        self.status = "unhealthy"
        return False


def make_server(
    plan: Plan, settings: Settings, knobs: Knobs, clock: Clock, ranks: Ranks, loaded: Loaded, start_number: int
) -> Server:
    scheduler = Scheduler(plan, settings, knobs, clock, loaded.environments, start_number, _wiring(plan))
    return Server(plan, settings, knobs, clock, ranks, loaded, scheduler)


def _wiring(plan: Plan) -> float:
    """What of the draft's gain is left by how it is wired to the target, and by whether it was loaded at all.

    Source: weights that were never loaded accept nothing (generate_eagle3_random_draft_steps2.json).
    """
    if plan.draft is not None and plan.arguments["speculative_draft_load_format"] == "dummy":
        return 0.0
    return 0.5 if plan.draft is not None and not wired_right(plan.target, plan.draft) else 1.0


def random_seed(seed: int, start_number: int) -> int:
    return random.Random(f"random_seed:{seed}:{start_number}").randint(0, 2**30)


async def _disconnected(http: HttpRequest) -> None:
    with suppress(asyncio.CancelledError):
        while (await http.receive())["type"] != "http.disconnect":
            pass


def _number(value: Any, default: float, name: str) -> float:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"{name} must be a number, got {value!r}.")
    return float(value)
