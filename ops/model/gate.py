"""What the gate judges (`Server`), what it sees there, and what it leaves behind.

All durations and rates here are in the server's own seconds. On a sandbox host wall time runs faster; the `Clock`
is the one place that knows, so no check ever multiplies or divides by a time scale.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from ops.model.profile import Profile
from ops.model.verdict import Outcome, Verdict, combine, not_passed


class Clock(Protocol):
    """Time as the host's engine counts it."""

    def now_s(self) -> float: ...

    def sleep_s(self, duration_s: float) -> None: ...

    def from_wall_s(self, wall_s: float) -> float:
        """Turn a duration measured on the host's wall clock into the engine's seconds."""
        ...

    def to_wall_s(self, duration_s: float) -> float:
        """Turn a duration in the engine's seconds (a timeout) into wall seconds."""
        ...


@dataclass(frozen=True)
class Reply:
    """An HTTP answer. `status` is None when none came: `error` says why (refused, timed out, cut)."""

    status: int | None
    body: Any
    elapsed_s: float
    error: str = ""


@dataclass(frozen=True)
class Generation:
    """One generation to ask for.

    Attributes:
        text: the prompt; sent as one user message when `chat`.
        tokens: how many tokens to generate; exactly so many when `exact` (the end token is ignored).
    """

    text: str
    tokens: int
    temperature: float = 0.0
    chat: bool = False
    exact: bool = True


@dataclass(frozen=True)
class Completion:
    """What came back for one `Generation`.

    Attributes:
        error: empty when the generation ended as it should; else what went wrong (timeout, cut stream, HTTP error).
        text: the generated text.
        output_ids: token ids, empty where the endpoint does not tell them.
        prompt_tokens, completion_tokens, cached_tokens: the server's own count (usage, meta_info).
        started_s, first_token_s, ended_s: seconds since the batch began. `first_token_s` is None without streaming.
        meta: the server's `meta_info` (or `usage` for chat).
    """

    status: int | None
    error: str
    text: str
    output_ids: tuple[int, ...]
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    finish_reason: str | None
    started_s: float
    first_token_s: float | None
    ended_s: float
    chunks: int = 0
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def elapsed_s(self) -> float:
        return self.ended_s - self.started_s

    @property
    def time_to_first_token_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.started_s


class Run(BaseModel):
    """One measured run: one request at concurrency 1, else one batch of simultaneous requests.

    Attributes:
        rate_tok_s: at concurrency 1 tokens after the first a second after the first; else total tokens of the batch
            over its wall time.
        ttft_ms: time to first token, mean over the batch; None when neither client nor server knows it.
        prompt: which prompt of the set (its speed depends on it); "mixed" for a batch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate_tok_s: float
    ttft_ms: float | None
    prompt: str = "mixed"


class BaselineKey(BaseModel):
    """What a baseline measurement depends on; when one of these changes it is no yardstick any more."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpu_uuids: tuple[str, ...]
    driver: str
    stack_lock_sha256: str
    target_sha256: str
    release: str
    prompt_set_sha256: str
    concurrency: tuple[int, ...]


class BaselineRecord(BaseModel):
    """The yardstick of a host: `baseline.json`.

    Attributes:
        runs: the measured runs by concurrency.
        reference_ids: greedy token ids by prompt name, for the agreement check.
        measured_at: ISO 8601, UTC.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = 1
    key: BaselineKey
    profile: str
    measured_at: str
    runs: dict[int, tuple[Run, ...]]
    reference_ids: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Stored:
    """What the host remembers from earlier gates.

    Attributes:
        baseline: the measured baseline, when there is a valid one for this host and stack.
        baseline_problem: why there is none ("driver changed: 570.1 -> 575.0"); empty when there is.
        expectations: by key, what a good gate learned: accept length, digests, speed (`GateReport.learned`).
    """

    baseline: BaselineRecord | None = None
    baseline_problem: str = ""
    expectations: Mapping[str, JsonValue] = field(default_factory=dict)


class Server(Protocol):
    """A running engine on a host, as the gate sees it."""

    @property
    def profile(self) -> Profile: ...

    @property
    def manifest(self) -> Mapping[str, Any]: ...

    @property
    def endpoint(self) -> tuple[str, int]:
        """Address and port that the engine is bound to."""
        ...

    @property
    def clock(self) -> Clock: ...

    @property
    def stored(self) -> Stored: ...

    def facts(self) -> Mapping[str, Any]:
        """Look at the host now (one read-only pass)."""
        ...

    def log(self, tail_lines: int) -> Sequence[str]:
        """Return the last lines the engine wrote since its present start."""
        ...

    def http(self, method: str, path: str, body: Any = None, timeout_s: float = 10.0) -> Reply: ...

    def batch(
        self,
        requests: Sequence[Generation],
        concurrency: int,
        timeout_s: float,
        *,
        stream: bool = False,
        give_up_after: int | None = None,
    ) -> list[Completion]:
        """Generate with `concurrency` requests in flight; one completion a request, in order; never raises for one.

        `timeout_s` is each request's. Once `give_up_after` failed, the rest is not sent and says so in its `error`.
        """
        ...

    def flush_cache(self, timeout_s: float = 30.0) -> bool:
        """Empty the prefix cache; False when the engine did not do it."""
        ...

    def say(self, text: str) -> None:
        """Tell the operator what is being done."""
        ...


class Subset(StrEnum):
    """Which checks are asked. A rollback is judged fast: alive to acceptance, speed only reported."""

    DEPLOY = "deploy"
    ROLLBACK = "rollback"


@dataclass(frozen=True)
class Gate:
    """One check of the gate, in a file of its own in `ops/gates/` as the constant `GATE`.

    Attributes:
        order: cheap first; also the order in which failures are named.
        needs: names of checks without which an answer means nothing; when one of them did not pass this one is skipped.
        costly: takes long, so it is skipped when the release is refused already.
        on_rollback: whether a rollback is asked as well.
        of_follower: whether a rank that takes no requests itself is asked (one model over several hosts).
    """

    name: str
    question: str
    order: int
    judge: "Callable[[Server, Learned], Verdict]"
    needs: tuple[str, ...] = ()
    costly: bool = False
    on_rollback: bool = True
    of_follower: bool = False


class Learned:
    """What one gate has found out so far: what the host should remember once the release is good, figures to
    report, and what a later check need not measure again.

    Attributes:
        pid: the engine's, as `alive` saw it at the beginning.
        greedy: the answers to the short prompts at temperature 0, by prompt.
    """

    def __init__(self, subset: Subset = Subset.DEPLOY) -> None:
        self.subset = subset
        self.expectations: dict[str, JsonValue] = {}
        self.figures: dict[str, JsonValue] = {}
        self.baseline: BaselineRecord | None = None
        self.notes: list[str] = []
        self.pid: int | None = None
        self.greedy: dict[str, Completion] | None = None


class GateReport(BaseModel):
    """The result of a gate, as it goes to the journal, to `--json` and to the next `ops status`.

    Attributes:
        learned: expectations to store beside the baseline when the release becomes good.
        baseline: a baseline record to store (first measurement of a non-speculative profile).
        seconds: how long it took, in the server's seconds.
        started_at: ISO 8601, UTC.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    subset: Subset
    verdicts: tuple[Verdict, ...]
    figures: dict[str, JsonValue] = Field(default_factory=dict)
    learned: dict[str, JsonValue] = Field(default_factory=dict)
    baseline: BaselineRecord | None = None
    notes: tuple[str, ...] = ()
    started_at: str
    seconds: float

    @property
    def outcome(self) -> Outcome:
        return combine(self.verdicts)

    @property
    def first_problem(self) -> Verdict | None:
        """The check to name first, or None when the gate passed."""
        problems = not_passed(self.verdicts)
        return problems[0] if problems else None
