"""What the scheduler keeps count of: who runs, and what the next log line and the averages will say."""

from dataclasses import dataclass, field

from .requests import Request


@dataclass
class Window:
    """What the next decode line will report."""

    since: float = 0.0
    iterations: float = 0.0
    tokens: int = 0
    steps: int = 0
    correct: int = 0


@dataclass
class Lifetime:
    """Sums over all finished windows: the average that /server_info shows lags up to 40 iterations."""

    steps: int = 0
    accepted_tokens: int = 0
    last_throughput: float = 0.0
    last_accept_length: float = 0.0
    last_accept_rate: float = 0.0


@dataclass
class Batch:
    waiting: list[Request] = field(default_factory=list)
    prefill: list[Request] = field(default_factory=list)
    decode: list[Request] = field(default_factory=list)

    @property
    def running(self) -> int:
        return len(self.prefill) + len(self.decode)

    def everyone(self) -> list[Request]:
        return [*self.waiting, *self.prefill, *self.decode]
