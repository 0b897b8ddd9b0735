"""Measured runs of a running engine: the same prompts, the same lengths, an empty prefix cache, nothing warm-up.

Rates come from the server's own token counts. At concurrency 1 a run is one streamed request, and its rate is that of
the decode: tokens after the first over the time after the first (prefill is judged by time to first token). At more
it is one batch of simultaneous requests, and its rate is all its tokens over its whole duration.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from ops.bench.stats import Sample
from ops.model.gate import Completion, Generation, Run, Server

METHOD = 2
"""Raised when runs measured before are no yardstick for runs measured now (part of a baseline's key)."""
MIXED = "mixed"
# A run counts as started cold when at most this share of its prompt came from the prefix cache. The first tokens
# (a template's head, the begin-of-text token) may be shared by every request.
CACHED_SHARE = 0.25


class RunFailed(Exception):
    """A measured request did not end as it should; its words come from the server."""


class NotCold(RunFailed):
    """The prefix cache kept answering: every request was fine, none was a measurement."""


def measure(
    server: Server,
    prompts: Mapping[str, str],
    *,
    concurrency: int,
    runs: int,
    tokens: int,
    timeout_s: float,
    first: int = 0,
    temperature: float = 0.0,
    nonce: str = "",
    done: Callable[[Run], None] = lambda run: None,
) -> list[Run]:
    """Measure runs number `first` to `first + runs` - 1 of an arm; prompts take turns.

    `nonce`: fresh for each measurement and always as long, for an engine that refuses to flush its prefix cache: it
    still knows the prompts of the measurement before.

    Raises: RunFailed when a request fails or is cut short; NotCold when the prefix cache keeps answering.
    """
    names = list(prompts)
    measured: list[Run] = []
    for number in range(first, first + runs):
        if concurrency == 1:
            chosen = [names[number % len(names)]]
        else:
            chosen = [names[i % len(names)] for i in range(concurrency)]
        bust = f"{nonce}.{number:03d}"
        run = _cold_run(server, [(n, prompts[n]) for n in chosen], bust, tokens, timeout_s, temperature)
        done(run)
        measured.append(run)
    return measured


def rates(runs: Sequence[Run]) -> Sample:
    """Return the runs' rates, tok/s, by prompt."""
    return Sample(tuple(run.rate_tok_s for run in runs), tuple(run.prompt for run in runs))


def times_to_first_token(runs: Sequence[Run]) -> Sample:
    """Return the times to first token, ms, by prompt, of the runs that know theirs."""
    known = [(run.ttft_ms, run.prompt) for run in runs if run.ttft_ms is not None]
    return Sample(tuple(ms for ms, _ in known), tuple(prompt for _, prompt in known))


def strata_of(concurrency: int, prompts: Mapping[str, str]) -> int:
    """Return how many kinds of runs there are: one a prompt, or a single mix for batches."""
    return len(prompts) if concurrency == 1 else 1


def _cold_run(
    server: Server,
    prompts: list[tuple[str, str]],
    bust: str,
    tokens: int,
    timeout_s: float,
    temperature: float,
) -> Run:
    for attempt in range(3):
        # A flush leaves the prompts as they are, so both arms decode the same text. Where the engine refuses it
        # (admin key, no endpoint), a number in front makes every prompt new.
        flushed = server.flush_cache()
        texts = _apart([text for _, text in prompts], "" if flushed and attempt == 0 else f".{bust}.{attempt}")
        requests = [Generation(text=text, tokens=tokens, temperature=temperature) for text in texts]
        alone = len(requests) == 1
        completions = server.batch(requests, len(requests), timeout_s, stream=alone)
        _complete(completions, tokens)
        if not any(_from_cache(c) for c in completions):
            return _run(completions, prompts[0][0] if alone else MIXED)
    raise NotCold("prompts keep being answered from the prefix cache, flushed and changed alike")


def _apart(texts: Sequence[str], bust: str) -> list[str]:
    """Number the repetitions of a prompt within a batch (everything with `bust`): equal ones share a prefill."""
    return [f"({i}{bust}) {text}" if bust or text in texts[:i] else text for i, text in enumerate(texts)]


def _complete(completions: Sequence[Completion], tokens: int) -> None:
    for completion in completions:
        if not completion.ok:
            raise RunFailed(completion.error)
        if completion.completion_tokens != tokens:
            raise RunFailed(f"{completion.completion_tokens} tokens instead of {tokens}")


def _from_cache(completion: Completion) -> bool:
    cached, prompt = completion.cached_tokens or 0, completion.prompt_tokens or 0
    return cached > CACHED_SHARE * prompt


def _run(completions: Sequence[Completion], prompt: str) -> Run:
    tokens = sum(c.completion_tokens or 0 for c in completions)
    known = [first for c in completions if (first := first_token_s(c)) is not None]
    ttft_ms = 1000 * math.fsum(known) / len(known) if len(known) == len(completions) else None
    if prompt == MIXED:
        duration_s = max(c.ended_s for c in completions) - min(c.started_s for c in completions)
        return Run(rate_tok_s=tokens / duration_s, ttft_ms=ttft_ms, prompt=prompt)
    if not known:
        raise RunFailed("a streamed answer brought no token")
    decode_s = completions[0].elapsed_s - known[0]
    if decode_s <= 0:
        raise RunFailed(
            f"the first token took {known[0]:.2f} s of {completions[0].elapsed_s:.2f} s: the clocks disagree"
        )
    return Run(rate_tok_s=(tokens - 1) / decode_s, ttft_ms=ttft_ms, prompt=prompt)


def first_token_s(completion: Completion) -> float | None:
    """Return the seconds to the first token: as the server tells, else as the client saw it in the stream.

    The server's own figure comes first: a client that wakes up late would shift time from prefill to decode.
    Source: SGLang 0.5.23 meta_info `first_token_latency` (generate_eagle3_step3.json), with --enable-metrics.
    """
    told = completion.meta.get("first_token_latency")
    return float(told) if isinstance(told, int | float) else completion.time_to_first_token_s
