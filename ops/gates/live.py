"""A running engine on a host, asked through the host's agent. Implements `ops.model.gate.Server`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ops.model.gate import Clock, Completion, Generation, Reply, Stored
from ops.model.profile import Profile

# What an answer may take on its way from the agent to the operator, beyond the work itself.
TRANSFER_WALL_S = 30.0


class Call(Protocol):
    """Runs a verb of the agent; `timeout_s` is wall time."""

    def __call__(
        self,
        verb: str,
        args: Mapping[str, Any],
        timeout_s: float,
        on_event: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> Any: ...


Key = str | Mapping[str, Any] | None


@dataclass(frozen=True)
class LiveServer:
    """Turns the gate's questions into verbs, and wall seconds of the host into the engine's.

    Attributes:
        bound: address and port that the engine is bound to.
        look: one read-only pass over the host (`facts.observe`, with models and listeners).
        read_log: the last N lines since the present start.
        api_key, admin_key: the engine's keys, or where the host finds them (`ops.remote.keys`). The admin key is what
            /flush_cache wants where the engine has one; else it is the other.
    """

    profile: Profile
    manifest: Mapping[str, Any]
    clock: Clock
    bound: tuple[str, int]
    call: Call
    look: Callable[[], Mapping[str, Any]]
    read_log: Callable[[int], Sequence[str]]
    say: Callable[[str], None]
    stored: Stored = field(default_factory=Stored)
    api_key: Key = None
    admin_key: Key = None

    @property
    def endpoint(self) -> tuple[str, int]:
        return self.bound

    def facts(self) -> Mapping[str, Any]:
        return self.look()

    def log(self, tail_lines: int) -> Sequence[str]:
        return self.read_log(tail_lines)

    def http(self, method: str, path: str, body: Any = None, timeout_s: float = 10.0) -> Reply:
        args = {**self._where(self.api_key), "method": method, "path": path, "body": body}
        found = self._ask("request", args, timeout_s)
        return Reply(found["status"], found["body"], self.clock.from_wall_s(found["elapsed_s"]), found["error"])

    def flush_cache(self, timeout_s: float = 30.0) -> bool:
        return bool(self._ask("flush", self._where(self.admin_key), timeout_s)["flushed"])

    def batch(
        self,
        requests: Sequence[Generation],
        concurrency: int,
        timeout_s: float,
        *,
        stream: bool = False,
        give_up_after: int | None = None,
    ) -> list[Completion]:
        model = self.profile.engine.served_model_name or self.profile.engine.model_path
        args = {
            **self._where(self.api_key),
            "requests": [asked(request, model) for request in requests],
            "concurrency": concurrency,
            "stream": stream,
            "give_up_after": give_up_after,
        }
        rounds = -(-len(requests) // max(1, concurrency))
        found = self._ask("batch", args, timeout_s, rounds)
        return [completion(entry, self.clock) for entry in found["completions"]]

    def _ask(self, verb: str, args: Mapping[str, Any], timeout_s: float, rounds: int = 1) -> Any:
        wall_s = self.clock.to_wall_s(timeout_s)
        whole = {**args, "timeout_s": wall_s}
        return self.call(f"engine_client.{verb}", whole, wall_s * rounds + TRANSFER_WALL_S, None)

    def _where(self, key: Key) -> dict[str, Any]:
        return {"address": self.bound[0], "port": self.bound[1], "api_key": key}


def asked(request: Generation, model: str) -> dict[str, Any]:
    """Return path and body of a generation.

    Source: SGLang 0.5.23 srt/managers/io_struct.py (GenerateReqInput), srt/entrypoints/openai/protocol.py.
    """
    if request.chat:
        return {
            "path": "/v1/chat/completions",
            "body": {
                "model": model,
                "messages": [{"role": "user", "content": request.text}],
                "temperature": request.temperature,
                "max_tokens": request.tokens,
                "ignore_eos": request.exact,
            },
        }
    sampling = {
        "temperature": request.temperature,
        "max_new_tokens": request.tokens,
        "ignore_eos": request.exact,
    }
    return {"path": "/generate", "body": {"text": request.text, "sampling_params": sampling}}


def completion(found: Mapping[str, Any], clock: Clock) -> Completion:
    """Turn the agent's record of one answer into engine seconds."""
    first = found["first_token_s"]
    return Completion(
        status=found["status"],
        error=found["error"],
        text=found["text"],
        output_ids=tuple(found["output_ids"]),
        prompt_tokens=found["prompt_tokens"],
        completion_tokens=found["completion_tokens"],
        cached_tokens=found["cached_tokens"],
        finish_reason=found["finish_reason"],
        started_s=clock.from_wall_s(found["started_s"]),
        first_token_s=None if first is None else clock.from_wall_s(first),
        ended_s=clock.from_wall_s(found["ended_s"]),
        chunks=found["chunks"],
        meta=found["meta"],
    )
