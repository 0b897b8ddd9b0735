"""What the server says of itself and of a request: bodies in the real one's shape.

Source: server_info_eagle3.json, model_info.json, v1_models.json, v1_loads.json, generate_eagle3_step3.json.
"""

import time
from datetime import UTC, datetime
from typing import Any

from . import __version__, physics
from .load import graph_batch_sizes
from .requests import Request
from .server import Server

METRICS_ONLY = (
    "forward_entry_time",
    "prefill_finished_time",
    "queue_time",
    "request_received_ts",
    "first_token_latency",
    "api_server_dispatch_finish_ts",
    "request_finished_ts",
    "decode_throughput",
    "response_sent_to_client_ts",
)
# Tokens of the context that requests cannot use: 4096 gave 4090 in the recording.
RESERVED_TOKENS = 6


def server_info(server: Server) -> dict[str, Any]:
    plan = server.plan
    return {
        **plan.arguments,
        "launch_command": plan.launch_command,
        "status": "ready",
        "max_total_num_tokens": plan.memory.tokens,
        "max_req_input_len": plan.context_len - RESERVED_TOKENS,
        "startup_time": server.loaded.startup_time,
        "hicache_object_layout": {
            "enabled": False,
            "backend": None,
            "page_size": plan.arguments["page_size"],
            "hicache_object_layout": {"pools": []},
            "reason": "Hierarchical cache is disabled",
        },
        "kv_events": None,
        "internal_states": [internal_state(server)],
        "version": __version__,
        "frontend": "python",
        "SIMULATED": f"x {server.clock.scale:g}",
    }


def internal_state(server: Server) -> dict[str, Any]:
    plan, lifetime = server.plan, server.scheduler.lifetime
    scheduler_startup = {k: v for k, v in server.loaded.startup_time.items() if k != "tokenizer_e2e"}
    state: dict[str, Any] = {
        **{k: v for k, v in plan.arguments.items() if k != "custom_sigquit_handler"},
        "world_size": plan.ranks,
        "startup_time": scheduler_startup,
        "effective_max_running_requests_per_dp": plan.max_running,
        "last_gen_throughput": lifetime.last_throughput,
        "memory_usage": memory_usage(server),
        "decode_cuda_graph_bs": graph_batch_sizes(plan),
        "decode_cuda_graph_memory_gb": round(plan.memory.graphs, 3),
    }
    average = average_accept_length(server)
    if average is not None:
        state["avg_spec_accept_length"] = average
    return state


def average_accept_length(server: Server) -> float | None:
    """Return the lifetime average as /server_info shows it: absent until the first decode line."""
    if not server.plan.speculative:
        return None
    lifetime = server.scheduler.lifetime
    stale = server.knobs["stale_accept_metric"]
    if stale and lifetime.steps:
        return physics.accept_length(server.plan.steps) if stale is True else float(stale)
    return lifetime.accepted_tokens / lifetime.steps if lifetime.steps else None


def memory_usage(server: Server) -> dict[str, Any]:
    memory = server.plan.memory
    graphs = dict.fromkeys(server.loaded.startup_time["cuda_graph"], 0.0)
    main = "target_verify" if server.plan.draft is not None else "decode"
    graphs[main] = round(memory.graphs, 3)
    return {
        "weight": round(memory.weights + memory.draft, 3),
        "kvcache": round(memory.pool, 3),
        "startup_available": round(memory.total - memory.held_mib / 1024, 3),
        "token_capacity": memory.tokens,
        "token_capacity_swa": None,
        "graph": graphs,
    }


def model_info(server: Server) -> dict[str, Any]:
    plan = server.plan
    arguments = plan.arguments
    return {
        "model_path": arguments["model_path"],
        "served_model_name": arguments["served_model_name"],
        "tokenizer_path": arguments["tokenizer_path"],
        "is_generation": True,
        "preferred_sampling_params": arguments["preferred_sampling_params"],
        "weight_version": arguments["weight_version"],
        "load_format": arguments["load_format"],
        "reasoning_parser": arguments["reasoning_parser"],
        "tool_call_parser": arguments["tool_call_parser"],
        "disaggregation_mode": arguments["disaggregation_mode"],
        "has_image_understanding": plan.target.multimodal,
        "has_audio_understanding": False,
        "model_type": plan.target.model_type,
        "architectures": [plan.target.architecture],
        "embedding": _embedding(server),
    }


def _embedding(server: Server) -> dict[str, Any]:
    off = dict.fromkeys(
        (
            "supports_dimensions",
            "supports_token_embeddings",
            "supports_multimodal",
            "requires_embedding_flag",
            "auto_enable_embedding",
        ),
        False,
    )
    safe = dict.fromkeys(("safe_disable_kv_cache", "safe_disable_radix_cache", "safe_disable_chunked_prefill"), False)
    prefill = server.plan.arguments["cuda_graph_config"]["prefill"]
    return {
        "family": "none",
        "task": "none",
        "execution": "none",
        "attention": "none",
        "pooling": "model_defined",
        "normalize": False,
        "postprocessor": "none",
        "tokenizer_special_tokens": "model_default",
        **off,
        "bcg_eligibility": "disabled",
        **safe,
        "enabled": False,
        "matryoshka_dimensions": [],
        "bcg": {
            "prefill_backend": prefill["backend"],
            "enabled": False,
            "capture_token_budget": prefill["max_bs"],
            "capture_batch_sizes": prefill["bs"],
        },
        "cache": {
            "kv_cache_disabled": False,
            "radix_cache_disabled": bool(server.plan.arguments["disable_radix_cache"]),
            "chunked_prefill_disabled": False,
        },
    }


def model_card(server: Server) -> dict[str, Any]:
    name = server.plan.arguments["served_model_name"]
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": name,
        "parent": None,
        "max_model_len": server.plan.context_len,
    }


def loads(server: Server) -> dict[str, Any]:
    scheduler, plan = server.scheduler, server.plan
    waiting = len(scheduler.batch.waiting)
    used = scheduler.used_tokens()
    load = {
        "timestamp": round(time.time(), 5),
        "dp_rank": 0,
        "num_running_reqs": scheduler.batch.running,
        "num_waiting_reqs": waiting,
        "num_waiting_uncached_tokens": sum(len(r.prompt) for r in scheduler.batch.waiting),
        "num_used_tokens": used,
        "num_total_tokens": used,
        "num_active_tokens": used,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": plan.memory.tokens,
        "max_running_requests": plan.max_running,
        "token_usage": round(scheduler.token_usage(), 4),
        "gen_throughput": round(scheduler.lifetime.last_throughput, 2),
        "cache_hit_rate": 0.0,
        "utilization": round(scheduler.batch.running / plan.max_running, 4),
        "total_prefill_uncached_tokens": scheduler.counters.computed_tokens,
        "total_prefill_busy_us": int(scheduler.counters.forward_s["extend"] * 1e6),
        "decode_moments": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        "memory": {
            "weight_gb": round(plan.memory.weights + plan.memory.draft, 3),
            "kv_cache_gb": round(plan.memory.pool, 3),
            "graph_gb": round(plan.memory.graphs, 3),
            "token_capacity": plan.memory.tokens,
        },
    }
    if plan.speculative:
        lifetime = scheduler.lifetime
        load["speculative"] = {
            "accept_length": lifetime.last_accept_length,
            "accept_rate": lifetime.last_accept_rate,
        }
    load["disaggregation"] = _no_disaggregation()
    load["queues"] = {"waiting": waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0}
    return {
        "timestamp": datetime.now(UTC).isoformat(),
        "version": __version__,
        "accelerator": None,
        "num_accelerators": plan.ranks,
        "loads": [load],
    }


def _no_disaggregation() -> dict[str, Any]:
    return {
        "mode": "null",
        **dict.fromkeys(
            (
                "prefill_bootstrap_queue_reqs",
                "prefill_inflight_queue_reqs",
                "decode_prealloc_queue_reqs",
                "decode_transfer_queue_reqs",
                "decode_retracted_queue_reqs",
            ),
            0,
        ),
        "kv_transfer_speed_gb_s": 0.0,
        "kv_transfer_latency_ms": 0.0,
    }


def finish_reason(request: Request) -> dict[str, Any] | None:
    """Return the finish reason of a finished request, None while it runs."""
    if not request.done:
        return None
    if request.aborted is not None:
        return {"type": "abort", "message": request.aborted, "status_code": None, "err_type": None}
    kind, _, matched = request.finish.partition(":")
    if kind == "stop":
        return {"type": "stop", "matched": matched}
    return {"type": "length", "length": request.max_new_tokens if not request.cut else request.visible()}


def generate_body(server: Server, request: Request) -> dict[str, Any]:
    """Return one /generate response, or the state of a stream so far (text is cumulative)."""
    tokens = request.visible()
    return {
        "text": request.text(tokens),
        "output_ids": request.ids(tokens),
        "meta_info": meta_info(server, request, tokens),
    }


def meta_info(server: Server, request: Request, tokens: int) -> dict[str, Any]:
    end = request.finished_at if request.done else server.clock.now()
    version = server.plan.arguments["weight_version"]
    first_token_s = request.first_token_at - request.arrived_at
    wall_first = request.received + first_token_s / server.clock.scale
    meta: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": finish_reason(request),
        "prompt_tokens": len(request.prompt),
        "weight_version": version,
        "num_retractions": 0,
        "storage_prefetch_wait": 0.0,
        "storage_staging_wait": 0.0,
        "forward_entry_time": request.received,
        "prefill_finished_time": wall_first,
        "queue_time": max(0.0, request.admitted_at - request.arrived_at),
        "reasoning_tokens": 0,
        "completion_tokens": tokens,
        "cached_tokens": request.cached,
        "weight_versions": [{"version": version, "start": 0, "end": tokens}],
        "cached_tokens_details": None,
        "dp_rank": None,
        "e2e_latency": end - request.arrived_at,
        **(_spec_meta(server, request, tokens) if request.speculative else {}),
        "request_received_ts": request.received,
        "first_token_latency": first_token_s,
        "api_server_dispatch_finish_ts": request.received,
        "request_finished_ts": request.received + (end - request.arrived_at) / server.clock.scale,
        "decode_throughput": max(0, tokens - 1) / max(1e-6, end - request.first_token_at),
        "response_sent_to_client_ts": time.time(),
    }
    if not server.plan.arguments["enable_metrics"]:
        for name in METRICS_ONLY:
            del meta[name]
    return meta


def _spec_meta(server: Server, request: Request, tokens: int) -> dict[str, Any]:
    """Source: SGLang 0.5.23 srt/managers/tokenizer_manager.py:3138-3208."""
    steps, correct = request.steps_done(), request.correct_drafts()
    if steps == 0:
        return {}
    proposed = steps * (server.plan.draft_tokens - 1)
    return {
        "spec_accept_rate": correct / proposed if proposed else 0.0,
        "spec_accept_length": tokens / steps,
        "spec_num_correct_drafts": correct,
        "spec_num_proposed_drafts": proposed,
        "spec_verify_ct": steps,
        "spec_correct_drafts_histogram": request.histogram(server.plan.draft_tokens),
    }
