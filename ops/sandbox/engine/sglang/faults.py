"""Every fault the engine can have: a fault is a named set of knobs, and this is the one table of names.

``KNOBS`` says what each knob does; ``PRESETS`` gives the names that ``ops sandbox fault`` offers. A test may set any
knobs under no name. Times are virtual seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KNOBS: Mapping[str, str] = {
    "crash_in_load_at": "load phase in which rank 0 dies: init, weights, draft, kv_cache, graphs, warmup",
    "crash_message": "last line of the traceback of crash_in_load_at",
    "hang_in_load_at": "load phase that never ends",
    "load_s": "length of the whole load",
    "crash_after_serving_s": "a rank dies this long after the server was ready",
    "crash_after_requests": "a rank dies when this many requests were received (health probes not counted)",
    "crash_on_prompt_tokens_over": "a rank dies on a prompt longer than this",
    "long_context_crash": "a rank dies on a prompt longer than the draft's max_position_embeddings",
    "accept_length": "mean accept length, whatever the steps",
    "accept_factor": "factor on the mean accept length (never below 1 token a step)",
    "healthy_accept_minus_one_factor": "factor on what drafting adds: accept length minus one",
    "rewrite_draft_layer_ids": "add this to each layer id in the draft's config.json before it is read",
    "garbage": "output text: repeat, replacement, noise or empty",
    "hang_generation": "requests are accepted and never answered; /health stays 200",
    "scheduler_dead_http_alive": "all ranks exit unnoticed; HTTP answers what needs no scheduler",
    "drop_env_in_ranks": "variables withheld from the ranks: a list of names, or true for all NCCL_*",
    "draft_tokens_effective": "draft tokens that the engine really uses and reports",
    "draft_tokens_delta": "the same, relative to the request",
    "max_running_requests_effective": "request limit that the engine really uses and reports",
    "max_running_requests_factor": "the same, as a factor (at least 1 request)",
    "adaptive_off": "--speculative-adaptive is dropped with a warning",
    "speed_factor": "factor on the decode rate at every concurrency",
    "speed_factor_at_concurrency": 'factors by running requests, such as {">=2": 0.85}',
    "ttft_factor": "factor on the time to the first token",
    "health_503_for_s": "from readiness on: long prefills, /health 503, requests wait, the log advances",
    "first_requests_slow": 'the first requests take longer: {"count": 3, "s": 20}',
    "truncate_streams": "under load each answer ends after this share of its tokens; a stream is cut",
    "truncate_min_running": "running requests from which truncate_streams strikes (default 4)",
    "stale_accept_metric": "the lifetime accept length in /server_info stays at this value, or true: the healthy one",
    "prefix_cache_warm": "every prompt counts as cached until the cache is flushed",
    "sigterm_freezes_streams": "streams in flight at SIGTERM never advance again (recorded on a GPU, 0.5.17)",
    "orphans_survive": "ranks keep running, and keep their memory, when the launcher is killed",
    "orphan_s": "wall seconds that ranks outlive a killed launcher (default 1.7)",
}


@dataclass(frozen=True)
class Preset:
    description: str
    knobs: Mapping[str, Any]


PRESETS: Mapping[str, Preset] = {
    "crash-during-load": Preset("dies while loading the weights", {"crash_in_load_at": "weights"}),
    "hang-during-load": Preset("never gets past graph capture", {"hang_in_load_at": "graphs"}),
    "crash-while-serving": Preset("a rank dies 2 s after the server was ready", {"crash_after_serving_s": 2.0}),
    "wrong-wiring": Preset(
        "the draft's layer ids are one off, changed after preflight; half of the gain is gone",
        {"rewrite_draft_layer_ids": -1, "healthy_accept_minus_one_factor": 0.5},
    ),
    "accept-collapse": Preset(
        "no draft is accepted; /server_info still shows the healthy average",
        {"accept_length": 1.0, "stale_accept_metric": True},
    ),
    "garbage-output": Preset("one character again and again", {"garbage": "repeat"}),
    "health-ok-generation-hangs": Preset("/health 200, requests never end", {"hang_generation": True}),
    "scheduler-dead-http-alive": Preset("no rank lives, HTTP answers", {"scheduler_dead_http_alive": True}),
    "env-lost-in-ranks": Preset("the ranks have no NCCL_* variables", {"drop_env_in_ranks": True}),
    "silent-draft-token-change": Preset("two more draft tokens than asked for", {"draft_tokens_delta": 2}),
    "running-requests-capped": Preset("half of the requested limit", {"max_running_requests_factor": 0.5}),
    "slow-20-percent": Preset("20 % slower", {"speed_factor": 0.8}),
    "ttft-worse": Preset("60 % more time to the first token", {"ttft_factor": 1.6}),
    "dies-after-100-requests": Preset("a rank dies at request 100", {"crash_after_requests": 100}),
    "loses-under-load": Preset("fine alone, slow with company", {"speed_factor_at_concurrency": {">=2": 0.8}}),
    "long-context-crash": Preset("dies on a prompt beyond the draft's context", {"long_context_crash": True}),
    "truncated-streams": Preset("answers end early under load", {"truncate_streams": 0.6}),
    "adaptive-off-silently": Preset("adaptive speculation is not used", {"adaptive_off": True}),
    "busy-503": Preset("40 s of long prefills, /health 503", {"health_503_for_s": 40.0}),
    "stale-accept-metric": Preset("only the lifetime metric is wrong", {"stale_accept_metric": 1.02}),
    "slow-2-percent": Preset("2 % slower, still faster than the baseline", {"speed_factor": 0.98}),
    "cold-first-requests": Preset("the first three take 20 s", {"first_requests_slow": {"count": 3, "s": 20.0}}),
    "prefix-cache-warm": Preset("prompts are cached until a flush", {"prefix_cache_warm": True}),
}


def knobs_of(name: str) -> dict[str, Any]:
    """Return the knobs of a preset.

    Raises:
        KeyError: for a name that is not in the table.
    """
    return dict(PRESETS[name].knobs)


def check_knobs(knobs: Mapping[str, Any]) -> None:
    """Refuse knobs that the engine does not have.

    Raises:
        ValueError: naming the unknown knobs.
    """
    unknown = sorted(set(knobs) - set(KNOBS))
    if unknown:
        raise ValueError(f"unknown knobs {unknown}; known: {', '.join(sorted(KNOBS))}")
