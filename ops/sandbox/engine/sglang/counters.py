"""Running sums behind /metrics and /v1/loads."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from .requests import Request


@dataclass
class Histogram:
    """Observations of one metric; buckets are applied when it is written out."""

    values: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        self.values.append(value)


@dataclass
class Counters:
    prompt_tokens: Counter[bool] = field(default_factory=Counter)
    generation_tokens: Counter[bool] = field(default_factory=Counter)
    requests: Counter[bool] = field(default_factory=Counter)
    cached_tokens: int = 0
    computed_tokens: int = 0
    realtime_decode: int = 0
    verify_calls: int = 0
    prefill_passes: int = 0
    decode_passes: int = 0
    aborted: int = 0
    forward_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    http_requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    http_responses: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    http_active: Counter[tuple[str, str]] = field(default_factory=Counter)
    ttft: dict[bool, Histogram] = field(default_factory=lambda: {False: Histogram(), True: Histogram()})
    e2e: dict[bool, Histogram] = field(default_factory=lambda: {False: Histogram(), True: Histogram()})
    per_token: dict[bool, Histogram] = field(default_factory=lambda: {False: Histogram(), True: Histogram()})
    queue: Histogram = field(default_factory=Histogram)
    prompt_lengths: Histogram = field(default_factory=Histogram)
    uncached_lengths: Histogram = field(default_factory=Histogram)
    generation_lengths: Histogram = field(default_factory=Histogram)

    def prefill(self, new: int, cached: int, seconds: float) -> None:
        self.prefill_passes += 1
        self.computed_tokens += new
        self.cached_tokens += cached
        self.forward_s["extend"] += seconds

    def generated(self, tokens: int, steps: int) -> None:
        self.realtime_decode += tokens
        self.verify_calls += steps

    def decode_time(self, seconds: float, speculative: bool, cycle_ms: float) -> None:
        """Split forward time as the device timer does: the draft is less than 5 % of a cycle."""
        if not speculative:
            self.forward_s["decode"] += seconds
            return
        for category, share in (("target_verify", 0.955), ("eagle_draft", 0.025), ("eagle_draft_extend", 0.02)):
            self.forward_s[category] += seconds * share

    def finished(self, request: Request) -> None:
        stream = request.streaming
        self.requests[stream] += 1
        self.prompt_tokens[stream] += len(request.prompt)
        self.generation_tokens[stream] += request.tokens
        self.ttft[stream].add(request.first_token_at - request.arrived_at)
        self.e2e[stream].add(request.finished_at - request.arrived_at)
        if request.tokens > 1:
            self.per_token[stream].add((request.finished_at - request.first_token_at) / (request.tokens - 1))
        self.queue.add(request.admitted_at - request.arrived_at)
        self.prompt_lengths.add(len(request.prompt))
        self.uncached_lengths.add(len(request.prompt) - request.cached)
        self.generation_lengths.add(request.tokens)
