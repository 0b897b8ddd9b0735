"""The batch: who runs, who waits, how fast everybody gets on.

A fluid model in virtual time. Between two events (arrival, first token, end, log line) every rate is constant, and
events are worked off at their own moments even when the process wakes late, so that durations do not depend on how
busy the machine is.
"""

import asyncio
import math
import os
import random
from collections.abc import Mapping, Sequence

from . import logs, physics
from .batch import Batch, Lifetime, Window
from .cache import PrefixCache
from .clock import Clock
from .counters import Counters
from .knobs import Knobs
from .requests import Request
from .resolve import Plan
from .settings import RUNS_PER_START, Settings

MEASURED_TOKENS = 100
TICK_WALL_S = 0.01
NEVER = float("inf")


class Scheduler:
    """Runs the requests of one server."""

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        knobs: Knobs,
        clock: Clock,
        environments: Sequence[Mapping[str, str]],
        start_number: int,
        wiring_scale: float,
    ) -> None:
        self.plan, self.settings, self.knobs, self.clock = plan, settings, knobs, clock
        self.batch = Batch()
        self.window, self.lifetime = Window(), Lifetime()
        self.counters = Counters()
        self.cache = PrefixCache(capacity=400_000)
        self.steps = plan.steps
        self.busy_until = 0.0
        self.frozen = False
        # Set when the warm-up is over: faults of a serving engine do not strike its start.
        self.serving = False
        self.last_reply_at = -1.0
        self.received = 0
        self._environments = environments
        self._wiring_scale = wiring_scale
        # The real engine's own switch for made-up acceptance.  Source: SGLang 0.5.23 srt/environ.py.
        self._faked = max(0.0, float(os.environ.get("SGLANG_SIMULATE_ACC_LEN", "-1")))
        self._run = start_number * RUNS_PER_START
        self._now = clock.now()
        self._idle_since: float | None = self._now
        self._timer: asyncio.TimerHandle | None = None
        self._prefix = logs.rank_prefix(0, plan.ranks)

    # What speed and acceptance follow from

    def accept_scale(self, temperature: float) -> float:
        """Return the share of the healthy accepted drafts that is left."""
        scale = self._wiring_scale * physics.temperature_scale(temperature)
        scale *= self.knobs.number("healthy_accept_minus_one_factor", 1.0) if self._wiring_scale == 1.0 else 1.0
        healthy = physics.accept_length(self.steps, 1.0, self.plan.topk)
        if healthy <= 1.0:
            return scale
        length = self._faked or 1.0 + (healthy - 1.0) * scale
        length = self.knobs.number("accept_length", length) * self.knobs.number("accept_factor", 1.0)
        return max(0.0, length - 1.0) / (healthy - 1.0)

    def chances(self, temperature: float) -> tuple[float, ...]:
        return physics.survival(self.steps, self.accept_scale(temperature), self.plan.topk)

    def cycle(self, concurrency: int) -> float:
        """Return ms for one step of everybody in the batch."""
        extra = physics.all_reduce_ms(self._environments, self.settings.topology)
        # The draft tokens follow the steps under adaptive speculation, and are the plan's own otherwise.
        draft_tokens = self.plan.draft_tokens if self.steps == self.plan.steps else self.steps + 1
        cycle = physics.cycle_ms(self.steps, draft_tokens or None, concurrency, extra)
        return cycle * physics.topology_factor(self._environments, self.settings.topology) / self._speed(concurrency)

    def _speed(self, concurrency: int) -> float:
        factor = self.knobs.number("speed_factor", 1.0)
        for condition, at in (self.knobs["speed_factor_at_concurrency"] or {}).items():
            if meets(condition, concurrency):
                factor *= float(at)
        return factor

    def _noise(self) -> float:
        if self.settings.noise == "off":
            return 1.0
        sd = physics.STORY_SD if self.settings.sd is None else self.settings.sd
        return physics.noise_factor(
            self.settings.seed,
            self._run,
            sd,
            drift_per_run=self.settings.drift_per_run,
            autocorrelation=self.settings.autocorrelation,
        )

    # Requests come and go

    def submit(self, request: Request, arrived_at: float) -> None:
        """Take a request; a measured one (100 tokens and more) opens a new run unless another is running.

        The batch is taken to the moment of the arrival, not to the moment in which this process came to read it, so
        that durations are the same on a busy machine.
        """
        if self.active == 0:
            self._now = min(arrived_at, self.clock.now())
        self._catch_up(max(self._now, arrived_at))
        if measured(request) and not any(measured(other) for other in self.batch.everyone()):
            self._run += 1
        request.noise = self._noise()
        request.arrived_at = min(arrived_at, self._now)
        if not request.health_probe:
            self.received += 1
        self.batch.waiting.append(request)
        self._admit()
        for waiting in self.batch.waiting:
            waiting.queued = True
        self._set_rates()
        self._wake()

    def abort(self, request: Request, reason: str) -> None:
        self._catch_up(self.clock.now())
        if request.done:
            return
        request.aborted = reason
        self.counters.aborted += 1
        self._finish(request, self._now)
        self._admit()
        self._set_rates()
        self._wake()

    def freeze(self, at: float | None = None) -> None:
        """Stop all progress for good, as of `at` (by default now)."""
        self._catch_up(self.clock.now() if at is None else max(self._now, at))
        self.frozen = True
        self._wake()

    def follow(self) -> None:
        """Apply knobs that changed while requests run."""
        self._catch_up(self.clock.now())
        self._set_rates()
        self._wake()

    def heard_since(self, moment: float) -> bool:
        """Say whether anything came out of the scheduler after ``moment``."""
        self._catch_up(self.clock.now())
        for request in self.batch.decode:
            self._count(request)
        return self.last_reply_at > moment

    @property
    def active(self) -> int:
        return self.batch.running + len(self.batch.waiting)

    def _admit(self) -> None:
        while self.batch.waiting and self.batch.running < self.plan.max_running:
            request = self.batch.waiting.pop(0)
            if self.serving and self.knobs["hang_generation"] and not request.health_probe:
                request.first_token_at = NEVER
                self.batch.prefill.append(request)
                continue
            if self.serving and self.knobs["scheduler_dead_http_alive"]:
                self.batch.waiting.insert(0, request)
                return
            self._prefill(request)

    def _prefill(self, request: Request) -> None:
        request.cached = self.cache.match(request.prompt)
        new = len(request.prompt) - request.cached
        if self._idle_since is not None:
            self.window.since = self._now if self.window.tokens == 0 else self.window.since
            self._idle_since = None
        spread = 0.0
        if self.settings.noise != "off":
            spread = random.Random(f"ttft:{self.settings.seed}:{self._run}:{self.received}").gauss(0.0, 1.0)
        ttft = physics.ttft_ms(new, request.cached, spread) / 1000.0 * self.knobs.number("ttft_factor", 1.0)
        slow = self.knobs["first_requests_slow"]
        if self.serving and slow and self.received <= int(slow["count"]) and not request.health_probe:
            ttft += float(slow["s"])
        # What this process needed to read the request is no waiting: only a full batch makes a request wait.
        begin = self._now if request.queued else request.arrived_at
        request.admitted_at = begin
        request.first_token_at = max(begin, self.busy_until) + ttft
        logs.line(
            f"Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {request.cached}, token usage: "
            f"{self.token_usage():.2f}, #running-req: {len(self.batch.decode)}, #queue-req: {len(self.batch.waiting)}, "
            f"#pending-token: 0, cuda graph: False, input throughput (token/s): {new / max(ttft, 1e-6):.2f}",
            self._prefix,
        )
        self.batch.prefill.append(request)
        self.counters.prefill(new, request.cached, ttft)

    def token_usage(self) -> float:
        return min(1.0, self.used_tokens() / max(1, self.plan.memory.tokens))

    def used_tokens(self) -> int:
        return sum(len(r.prompt) + r.visible() for r in (*self.batch.prefill, *self.batch.decode))

    # Time passes

    def _set_rates(self) -> None:
        concurrency = max(1, len(self.batch.decode))
        cycle = self.cycle(concurrency)
        for request in self.batch.decode:
            accept = 1.0 + sum(self.chances(request.temperature)) if self.plan.speculative else 1.0
            context = physics.context_factor(len(request.prompt) + request.tokens / 2)
            request.rate = 1000.0 * accept * request.noise / (cycle * context * physics.DECODE_SHARE)

    def _catch_up(self, now: float) -> None:
        if self.frozen:
            self._now = now
            return
        while (moment := self._next_moment()) <= now:
            self._advance(moment)
            self._fire()
        self._advance(now)

    def _next_moment(self) -> float:
        moments = [r.first_token_at for r in self.batch.prefill]
        moments += [self._now + (r.tokens - 1 - r.progress) / r.rate for r in self.batch.decode]
        if self.batch.decode:
            left = self.plan.arguments["decode_log_interval"] - self.window.iterations
            moments.append(self._now + left * self.cycle(len(self.batch.decode)) / 1000.0)
        return max(self._now, min(moments, default=NEVER))

    def _advance(self, moment: float) -> None:
        passed = moment - self._now
        self._now = moment
        if passed <= 0 or not self.batch.decode:
            return
        cycle = self.cycle(len(self.batch.decode))
        iterations = passed * 1000.0 / cycle
        self.window.iterations += iterations
        self.counters.decode_time(passed, self.plan.speculative, cycle)
        for request in self.batch.decode:
            request.progress = min(request.tokens - 1.0, request.progress + request.rate * passed)

    def _fire(self) -> None:
        begun = [r for r in self.batch.prefill if r.first_token_at <= self._now]
        for request in begun:
            self.batch.prefill.remove(request)
            self.batch.decode.append(request)
            request.started = True
            self.last_reply_at = self._now
            self.cache.insert(request.prompt)
            self._count(request)
        if begun:
            self._set_rates()
        for request in begun:
            # Read late, a request has its first token in the past: its decode goes on from there.
            request.progress = min(request.tokens - 1.0, request.rate * (self._now - request.first_token_at))
        for request in [r for r in self.batch.decode if r.tokens - 1 - r.progress < 1e-6]:
            self._finish(request, self._now)
        if self.window.iterations >= self.plan.arguments["decode_log_interval"] - 1e-6:
            self._log_decode()
        self._admit()
        self._set_rates()

    def _finish(self, request: Request, moment: float) -> None:
        for group in (self.batch.waiting, self.batch.prefill, self.batch.decode):
            if request in group:
                group.remove(request)
        request.done = True
        request.finished_at = moment
        self._count(request)
        if request.aborted is None:
            self.cache.insert([*request.prompt, *request.ids(request.tokens)])
            if not request.health_probe:
                self.counters.finished(request)
        if not self.batch.decode:
            self._idle_since = moment
        request.news.set()

    def _count(self, request: Request) -> None:
        """Add what is new of a request to the window and the counters."""
        steps, tokens = request.steps_done(), request.visible()
        self.window.steps += steps - request.counted_steps
        self.window.tokens += tokens - request.counted_tokens
        correct = sum(request.accepted[request.counted_steps : steps])
        self.window.correct += correct
        self.counters.generated(tokens - request.counted_tokens, steps - request.counted_steps)
        if steps > request.counted_steps or tokens > request.counted_tokens:
            self.last_reply_at = self._now
        request.counted_steps, request.counted_tokens = steps, tokens

    def _log_decode(self) -> None:
        for request in self.batch.decode:
            self._count(request)
        window = self.window
        running = max(1, len(self.batch.decode))
        throughput = window.tokens / max(1e-6, self._now - window.since)
        spoken = ""
        if self.plan.speculative and window.steps:
            drafted = window.steps * max(1, self.plan.draft_tokens - 1)
            length, rate = 1.0 + window.correct / window.steps, window.correct / drafted
            spoken = f"accept len: {length:.2f}, accept rate: {rate:.2f}, "
            self.lifetime.steps += window.steps
            self.lifetime.accepted_tokens += window.steps + window.correct
            self.lifetime.last_accept_length, self.lifetime.last_accept_rate = length, rate
        self.lifetime.last_throughput = throughput
        logs.line(
            f"Decode batch, #running-req: {running}, #token: {self.used_tokens()}, token usage: "
            f"{self.token_usage():.2f}, {spoken}cuda graph: {self.plan.graphs}, "
            f"gen throughput (token/s): {throughput:.2f}, #queue-req: {len(self.batch.waiting)}",
            self._prefix,
        )
        self.counters.decode_passes += round(window.iterations)
        self.window = Window(since=self._now)
        self._adapt(running)

    def _adapt(self, running: int) -> None:
        """Choose the steps as the adaptive controller does.  Source: SGLang srt/speculative/adaptive_spec_params.py."""
        if not self.plan.adaptive:
            return
        tier = self.plan.adaptive[max((k for k in self.plan.adaptive if k <= running), default=min(self.plan.adaptive))]
        ema = sum(self.chances(0.0))
        below = [step for step in tier if step < self.steps]
        above = [step for step in tier if step > self.steps]
        chosen = self.steps
        if self.steps not in tier:
            chosen = max(below, default=min(tier))
        elif above and ema > self.steps - 0.5:
            chosen = min(above)
        elif below and ema <= max(below) - 0.5 - 0.25:
            chosen = max(below)
        if chosen == self.steps:
            return
        logs.line(
            f"Adaptive spec params updated: steps {self.steps} -> {chosen} (ema_accept_len={ema:.2f})", self._prefix
        )
        logs.line(
            f"Switch adaptive runtime state: steps {self.steps} -> {chosen}, "
            f"draft_tokens {self.steps + 1} -> {chosen + 1}",
            self._prefix,
        )
        self.steps = chosen

    # The event loop's timer

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.frozen:
            return
        moment = self._next_moment()
        streams = any(r.streaming for r in self.batch.decode)
        if math.isinf(moment) and not streams:
            return
        delay = self.clock.wall_until(moment) if not math.isinf(moment) else TICK_WALL_S
        if streams:
            cycle_wall = self.cycle(len(self.batch.decode)) / 1000.0 / self.clock.scale
            delay = min(delay, max(TICK_WALL_S, cycle_wall))
        self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._catch_up(self.clock.now())
        for request in self.batch.decode:
            if request.streaming:
                request.news.set()
        self._wake()


def measured(request: Request) -> bool:
    """Say whether a request belongs to a measured run; short ones take the speed of the last run."""
    return request.max_new_tokens >= MEASURED_TOKENS


def meets(condition: str, concurrency: int) -> bool:
    """Say whether ``concurrency`` meets ">=2", "<4", "8"."""
    for sign, holds in ((">=", concurrency.__ge__), ("<=", concurrency.__le__), (">", concurrency.__gt__)):
        if condition.startswith(sign):
            return bool(holds(int(condition[len(sign) :])))
    if condition.startswith("<"):
        return concurrency < int(condition[1:])
    return concurrency == int(condition)
