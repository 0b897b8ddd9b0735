"""From the raw command line to what the server will run: defaults, speculation rules, memory.

Rules and messages: SGLang 0.5.23 srt/arg_groups/speculative_hook.py (``_handle_eagle_family``, ``_handle_ngram``),
srt/configs/model_config.py:1290-1316. Like the real one, a rule that is
broken here ends the launcher with a traceback and exit 1 before anything is loaded.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import logs
from .models import Draft, Target, read_draft, read_target

EAGLE = ("EAGLE", "EAGLE3", "STANDALONE")
ALGORITHMS = (*EAGLE, "NEXTN", "NGRAM", "DFLASH", "DSPARK", "UNO")
ADAPTIVE_DEFAULT: Mapping[str, Any] = {
    "1": {"candidate_steps": [1, 3, 5, 7]},
    "8": {"candidate_steps": [0, 1, 3]},
    "32": {"candidate_steps": [0, 1]},
    "64": {"candidate_steps": [0]},
}
OVERRIDE_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
GIB_PER_RANK_LIMIT_SHARE = 0.65
STORY_WEIGHTS_GIB = 496.0


@dataclass(frozen=True)
class Memory:
    """GiB on one GPU, and how many tokens the KV pool holds; a pool of 0 or less ends the load."""

    total: float
    weights: float
    draft: float
    pool: float
    graphs: float
    tokens: int

    @property
    def held_mib(self) -> int:
        return int((0.9 + self.weights + self.draft + self.pool + self.graphs) * 1024)


@dataclass(frozen=True)
class Plan:
    """Everything fixed at start. ``arguments`` are the resolved server arguments, as /server_info reports them."""

    arguments: dict[str, Any]
    launch_command: str
    target: Target
    draft: Draft | None
    memory: Memory
    context_len: int
    max_running: int
    adaptive: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Ranks of all nodes."""
        return int(self.arguments["tp_size"])

    @property
    def nodes(self) -> int:
        return int(self.arguments["nnodes"])

    @property
    def node_rank(self) -> int:
        return int(self.arguments["node_rank"])

    @property
    def local(self) -> range:
        """Ranks of this node.  Source: SGLang 0.5.23 srt/entrypoints/engine.py:2045 (_calculate_rank_ranges)."""
        share = self.ranks // self.nodes
        return range(share * self.node_rank, share * (self.node_rank + 1))

    @property
    def speculative(self) -> bool:
        return self.arguments["speculative_algorithm"] is not None

    @property
    def steps(self) -> int:
        return int(self.arguments["speculative_num_steps"] or 0) if self.speculative else 0

    @property
    def draft_tokens(self) -> int:
        return int(self.arguments["speculative_num_draft_tokens"] or 0) if self.speculative else 0

    @property
    def graphs(self) -> bool:
        return not self.arguments["disable_cuda_graph"]

    @property
    def topk(self) -> int:
        return int(self.arguments["speculative_eagle_topk"] or 1)


def default_arguments() -> dict[str, Any]:
    """Return every server argument with its default on CUDA.  Source: server_info_eagle3.json."""
    text = (Path(__file__).parent / "server_args.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def resolve(
    given: Mapping[str, Any], argv: list[str], environment: Mapping[str, str], gpu_mib: int, random_seed: int
) -> Plan:
    """Return the plan for a command line.

    Raises:
        OSError, ValueError, TypeError, AssertionError: as the real engine, with its words.
    """
    arguments = default_arguments()
    arguments.update({key: value for key, value in given.items() if key in arguments})
    if given.get("disable_cuda_graph"):
        logs.line(
            "\x1b[1;33m'--disable-cuda-graph' is deprecated and will be removed in a future release. "
            "Use '--cuda-graph-backend-{decode,prefill}=disabled' instead.\x1b[0m"
        )
    assert arguments["tp_size"] % arguments["nnodes"] == 0, "tp_size must be divisible by number of nodes"
    model = str(arguments["model_path"])
    arguments["tokenizer_path"] = arguments["tokenizer_path"] or model
    arguments["served_model_name"] = arguments["served_model_name"] or model
    arguments["random_seed"] = arguments["random_seed"] if arguments["random_seed"] is not None else random_seed
    arguments["mem_fraction_static"] = arguments["mem_fraction_static"] or 0.88
    target = read_target(model)
    context_len = _context_length(arguments["context_length"], target.context, environment)
    draft, adaptive = _resolve_speculation(arguments)
    memory = _plan_memory(arguments, target, draft, gpu_mib / 1024.0)
    max_running = arguments["max_running_requests"]
    return Plan(
        arguments=arguments,
        launch_command=shlex.join(argv),
        target=target,
        draft=draft,
        memory=memory,
        context_len=context_len,
        max_running=int(max_running) if max_running is not None else 2048,
        adaptive=adaptive,
    )


def truthy(value: str | None) -> bool:
    return (value or "").strip().lower() in ("1", "true", "yes", "y", "t", "on")


def draft_context_error(plan: Plan, environment: Mapping[str, str]) -> str | None:
    """Return the error with which loading the draft ends when its context is shorter, or None."""
    if plan.draft is None or plan.context_len <= plan.draft.context:
        return None
    message = _longer("Target model's", plan.context_len, plan.draft.context)
    if truthy(environment.get(OVERRIDE_CONTEXT)):
        return None
    return f"{message} To allow overriding this maximum, set the env var {OVERRIDE_CONTEXT}=1"


def _longer(who: str, wanted: int, derived: int) -> str:
    return (
        f"Warning: {who} context_length ({wanted}) is greater than the derived context_length ({derived}). "
        "This may lead to incorrect model outputs or CUDA errors. Note that the derived context_length may differ "
        "from max_position_embeddings in the model's config."
    )


def _context_length(wanted: int | None, derived: int, environment: Mapping[str, str]) -> int:
    if wanted is None or wanted <= derived:
        return wanted or derived
    message = _longer("User-specified", wanted, derived)
    if not truthy(environment.get(OVERRIDE_CONTEXT)):
        raise ValueError(f"{message} To allow overriding this maximum, set the env var {OVERRIDE_CONTEXT}=1")
    logs.line(message)
    return wanted


def _resolve_speculation(arguments: dict[str, Any]) -> tuple[Draft | None, dict[int, tuple[int, ...]]]:
    if arguments["speculative_algorithm"] is None:
        return None, {}
    algorithm = str(arguments["speculative_algorithm"]).upper()
    path = arguments["speculative_draft_model_path"]
    draft = read_draft(str(path)) if path is not None and algorithm != "NGRAM" else None
    if algorithm not in ALGORITHMS:
        raise ValueError(f"Unknown speculative algorithm name: {algorithm}")
    arguments["speculative_algorithm"] = "EAGLE" if algorithm == "NEXTN" else algorithm
    if arguments["max_running_requests"] is None:
        arguments["max_running_requests"] = 48
        logs.line(
            "Max running requests is reset to 48 for speculative decoding. You can override this by explicitly "
            "setting --max-running-requests."
        )
    if algorithm == "NGRAM":
        _resolve_ngram(arguments)
        return None, {}
    arguments["speculative_draft_model_revision"] = arguments["speculative_draft_model_revision"] or "main"
    adaptive = _resolve_adaptive(arguments)
    _resolve_eagle(arguments)
    if draft is None:
        raise ValueError("Draft model path is required: --speculative-draft-model-path was not given.")
    return draft, adaptive


def _resolve_eagle(arguments: dict[str, Any]) -> None:
    if not arguments["speculative_adaptive"] and arguments["speculative_num_steps"] is None:
        assert arguments["speculative_eagle_topk"] is None and arguments["speculative_num_draft_tokens"] is None
        arguments.update(speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4)
    steps, topk = arguments["speculative_num_steps"], arguments["speculative_eagle_topk"]
    if topk == 1 and arguments["speculative_num_draft_tokens"] != steps + 1:
        logs.line(
            "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"
        )
        arguments["speculative_num_draft_tokens"] = steps + 1
    backends = ("flashinfer", "fa3", "triton")
    # A missing topk ends here with a TypeError, exactly as in the real engine (crash_num_steps_alone.log).
    if topk > 1 and arguments["page_size"] > 1 and arguments["attention_backend"] not in backends:
        raise ValueError(
            f"speculative_eagle_topk > 1 with page_size > 1 is only supported on {backends}; got "
            f"attention_backend={arguments['attention_backend']!r}. Use page_size == 1 or one of those backends."
        )


def _resolve_ngram(arguments: dict[str, Any]) -> None:
    arguments["enable_mixed_chunk"] = False
    arguments["speculative_eagle_topk"] = arguments["speculative_ngram_max_bfs_breadth"]
    arguments["speculative_num_draft_tokens"] = arguments["speculative_num_draft_tokens"] or 12
    if arguments["speculative_num_steps"] is None:
        draft_tokens = arguments["speculative_num_draft_tokens"]
        arguments["speculative_num_steps"] = draft_tokens // arguments["speculative_eagle_topk"]


def _resolve_adaptive(arguments: dict[str, Any]) -> dict[int, tuple[int, ...]]:
    """Return batch size -> candidate steps; empty when adaptive speculation is off.

    Source: SGLang 0.5.23 srt/speculative/adaptive_spec_params.py.
    """
    if not arguments["speculative_adaptive"]:
        return {}
    if arguments["speculative_eagle_topk"] not in (None, 1):
        logs.line(
            "speculative_adaptive disabled: speculative_eagle_topk must be 1. "
            "Falling back to static speculative params."
        )
        arguments["speculative_adaptive"] = False
        return {}
    file = arguments["speculative_adaptive_config"]
    config = json.loads(Path(file).read_text(encoding="utf-8")) if file else ADAPTIVE_DEFAULT
    tiers = {int(k): tuple(v["candidate_steps"]) for k, v in config.items() if k.isdigit()}
    union = sorted({step for tier in tiers.values() for step in tier})
    steps = arguments["speculative_num_steps"]
    if steps is None:
        steps = union[len(union) // 2]
    elif steps not in union:
        raise ValueError(f"speculative_num_steps={steps} is not one of the candidate steps {union}")
    arguments.update(speculative_eagle_topk=1, speculative_num_steps=steps, speculative_num_draft_tokens=steps + 1)
    return tiers


def _plan_memory(arguments: Mapping[str, Any], target: Target, draft: Draft | None, total: float) -> Memory:
    ranks = int(arguments["tp_size"])
    parameters = target.layers * target.hidden**2 * 12 + target.vocabulary * target.hidden * 2
    size = STORY_WEIGHTS_GIB if target.layers >= 60 and target.hidden >= 7000 else parameters * 2 / 2**30
    weights = min(size / ranks, total * GIB_PER_RANK_LIMIT_SHARE)
    draft_gib = 0.0 if draft is None else min(2.2 / ranks + 0.3, weights * 0.1)
    fraction = float(arguments["mem_fraction_static"])
    pool = fraction * total - weights - draft_gib - 0.9
    width = 576 if target.deepseek_family else max(64, target.hidden // ranks) * 2
    tokens = max(0, int(pool * 2**30 / (target.layers * width * 2)))
    if arguments["max_total_tokens"]:
        tokens = min(tokens, int(arguments["max_total_tokens"]))
    return Memory(total, weights, draft_gib, pool, min(1.6, total * 0.02), tokens)
