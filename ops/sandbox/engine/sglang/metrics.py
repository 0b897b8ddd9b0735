"""Prometheus text in the real server's names, types, labels and buckets.

``metrics.json`` holds one family a line, taken from a real server's /metrics (metrics_eagle3.txt, EAGLE3, 3 steps).
What the simulation does not know stays at the family's default, 0 unless the template says otherwise.
"""

import json
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from .counters import Counters, Histogram
from .info import memory_usage
from .resolve import truthy
from .server import Server

Value = float | Mapping[str, float]
FORWARD_HELP = (
    "# HELP sglang:forward_execution_seconds_total Total time that GPU is busy executing model forward passes. "
    "Refer to ForwardMode for category labels.\n# TYPE sglang:forward_execution_seconds_total counter"
)
DEVICE_TIMER = "SGLANG_ENABLE_METRICS_DEVICE_TIMER"


@cache
def families() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads((Path(__file__).parent / "metrics.json").read_text(encoding="utf-8")))


def render(server: Server) -> str:
    """Return the body of /metrics."""
    values = {**_static(server), **_live(server), **_totals(server)}
    lines: list[str] = []
    for family in families():
        if family["name"] == "sglang:spec_verify_calls_total" and not server.plan.speculative:
            continue
        lines.append(f"# HELP {family['name']} {family['help']}")
        lines.append(f"# TYPE {family['name']} {family['type']}")
        if family["type"] == "histogram":
            lines += _histogram_lines(server, family)
        else:
            lines += _sample_lines(server, family, values)
    if truthy(os.environ.get(DEVICE_TIMER)):
        lines += _forward_lines(server)
    return "\n".join(lines) + "\n"


def _sample_lines(server: Server, family: Mapping[str, Any], values: Mapping[str, Value]) -> Iterator[str]:
    name = family["name"]
    if name.startswith("sglang:http_"):
        yield from _http_lines(server.scheduler.counters, name)
        return
    value = values.get(name, family.get("default", 0.0))
    for labels in _with_streaming(server, family["series"]):
        if isinstance(value, Mapping):
            key = next((labels[k] for k in ("mode", "phase", "is_streaming", "cache_source") if k in labels), "")
            yield _line(server, name, labels, value.get(key, 0.0))
        else:
            yield _line(server, name, labels, value)


def _with_streaming(server: Server, series: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Yield the template's series, and the streaming twin of those that have one once something was streamed."""
    for labels in series:
        yield labels
        if labels.get("is_streaming") == "false" and server.scheduler.counters.requests[True]:
            yield {**labels, "is_streaming": "true"}


def _http_lines(counters: Counters, name: str) -> Iterator[str]:
    if name == "sglang:http_responses_total":
        for (path, method, status), count in counters.http_responses.items():
            yield f'{name}{{endpoint="{path}",method="{method}",status_code="{status}"}} {float(count)}'
        return
    source = counters.http_requests if name == "sglang:http_requests_total" else counters.http_active
    for (path, method), count in source.items():
        yield f'{name}{{endpoint="{path}",method="{method}"}} {float(count)}'


def _histogram_lines(server: Server, family: Mapping[str, Any]) -> Iterator[str]:
    name = family["name"]
    for labels in _with_streaming(server, family["series"]):
        observed = _observations(server.scheduler.counters, name, labels).values
        yield _line(server, f"{name}_sum", labels, sum(observed))
        for bucket in family["buckets"]:
            count = sum(value <= float(bucket) for value in observed)
            yield _line(server, f"{name}_bucket", {**labels, "le": bucket}, float(count))
        yield _line(server, f"{name}_count", labels, float(len(observed)))


def _observations(counters: Counters, name: str, labels: Mapping[str, str]) -> Histogram:
    streaming = labels.get("is_streaming") == "true"
    known = {
        "sglang:time_to_first_token_seconds": counters.ttft[streaming],
        "sglang:e2e_request_latency_seconds": counters.e2e[streaming],
        "sglang:request_time_per_output_token_seconds": counters.per_token[streaming],
        "sglang:queue_time_seconds": counters.queue,
        "sglang:prompt_tokens_histogram": counters.prompt_lengths,
        "sglang:uncached_prompt_tokens_histogram": counters.uncached_lengths,
        "sglang:generation_tokens_histogram": counters.generation_lengths,
    }
    return known.get(name, Histogram())


def _forward_lines(server: Server) -> Iterator[str]:
    """Source: metrics_device_timer.txt (0.5.17)."""
    yield from FORWARD_HELP.split("\n")
    for category, seconds in server.scheduler.counters.forward_s.items():
        labels = {
            "category": category,
            "engine_type": "unified",
            "model_name": "$model",
            "moe_ep_rank": "0",
            "pp_rank": "0",
            "tp_rank": "0",
        }
        yield _line(server, "sglang:forward_execution_seconds_total", labels, seconds)


def _line(server: Server, name: str, labels: Mapping[str, str], value: Any) -> str:
    model = str(server.plan.arguments["served_model_name"])
    filled = {
        key: {"$model": model, "$pid": str(server.ranks.schedulers[0].process.pid)}.get(text, text)
        for key, text in labels.items()
    }
    inside = ",".join(f'{key}="{text}"' for key, text in filled.items())
    shown = value if isinstance(value, str) else repr(float(value))
    return f"{name}{{{inside}}} {shown}" if inside else f"{name} {shown}"


def _static(server: Server) -> dict[str, Value]:
    plan, startup = server.plan, server.loaded.startup_time
    usage = memory_usage(server)
    return {
        "sglang:startup_time_seconds": {k: v for k, v in startup.items() if k != "cuda_graph"},
        "sglang:startup_cuda_graph_time_seconds": startup["cuda_graph"],
        "sglang:max_total_num_tokens": plan.memory.tokens,
        "sglang:weight_memory_usage_gb": usage["weight"],
        "sglang:kv_cache_memory_usage_gb": usage["kvcache"],
        "sglang:graph_memory_usage_gb": usage["graph"],
        "sglang:page_size": plan.arguments["page_size"],
        "sglang:num_pages": plan.memory.tokens // plan.arguments["page_size"],
        "sglang:context_len": plan.context_len,
        "sglang:startup_available_gpu_memory_gb": usage["startup_available"],
        "sglang:is_cuda_graph": 1.0,
    }


def _live(server: Server) -> dict[str, Value]:
    scheduler = server.scheduler
    batch, lifetime = scheduler.batch, scheduler.lifetime
    used, cached = scheduler.used_tokens(), len(scheduler.cache)
    spec: dict[str, Value] = {}
    if server.plan.speculative:
        adaptive = scheduler.steps != server.plan.steps
        spec = {
            "sglang:spec_accept_length": lifetime.last_accept_length,
            "sglang:spec_accept_rate": lifetime.last_accept_rate,
            "sglang:spec_num_steps": scheduler.steps,
            "sglang:spec_num_draft_tokens": scheduler.steps + 1 if adaptive else server.plan.draft_tokens,
        }
    return {
        **spec,
        "sglang:num_running_reqs": batch.running,
        "sglang:num_queue_reqs": len(batch.waiting),
        "sglang:gen_throughput": lifetime.last_throughput,
        "sglang:decode_sum_seq_lens": used,
        "sglang:token_usage": scheduler.token_usage(),
        "sglang:full_token_usage": scheduler.token_usage(),
        "sglang:num_used_tokens": used,
        "sglang:kv_used_tokens": used,
        "sglang:kv_evictable_tokens": cached,
        "sglang:kv_available_tokens": max(0, server.plan.memory.tokens - used - cached),
        "sglang:utilization": batch.running / server.plan.max_running,
    }


def _totals(server: Server) -> dict[str, Value]:
    counters = server.scheduler.counters
    by_streaming = {"false": False, "true": True}
    looked_up = counters.computed_tokens + counters.cached_tokens
    return {
        "sglang:prompt_tokens_total": {k: float(counters.prompt_tokens[v]) for k, v in by_streaming.items()},
        "sglang:generation_tokens_total": {k: float(counters.generation_tokens[v]) for k, v in by_streaming.items()},
        "sglang:num_requests_total": {k: float(counters.requests[v]) for k, v in by_streaming.items()},
        "sglang:cached_tokens_total": {"device": float(counters.cached_tokens)},
        "sglang:cache_hit_rate": counters.cached_tokens / looked_up if looked_up else 0.0,
        "sglang:spec_verify_calls_total": counters.verify_calls,
        "sglang:prefill_effective_tokens_total": {
            "input": float(counters.computed_tokens),
            "device_hit": float(counters.cached_tokens),
        },
        "sglang:cuda_graph_passes_total": {
            "prefill_none": float(counters.prefill_passes),
            "decode_cuda_graph": float(counters.decode_passes),
        },
        "sglang:realtime_tokens_total": {
            "prefill_compute": float(counters.computed_tokens),
            "prefill_cache": float(counters.cached_tokens),
            "decode": float(counters.realtime_decode),
        },
    }
