"""From the command line to the moment before HTTP: the load, phase by phase, in the real order and words.

Source: startup_eagle3.log and nccl_info_ll.log (ranks, memory, graph capture on a GPU, 0.5.17), the 0.5.23 recordings
for the wording of its own lines.
"""

import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from . import logs
from .clock import Clock
from .knobs import Knobs
from .nodes import Closed, Nodes, NotJoined
from .ranks import Ranks
from .resolve import Plan, draft_context_error

T = TypeVar("T")
SHARES = {"init": 0.10, "weights": 0.45, "draft": 0.05, "kv_cache": 0.05, "graphs": 0.30, "finish": 0.05}
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB. GPU 0 has a total capacity of "
    "95.59 GiB of which 412.06 MiB is free."
)
PREFILL_GRAPHS_OFF = (
    "Disable prefill CUDA graph because cuda_graph_config resolved prefill.backend='disabled' (e.g. via "
    "--cuda-graph-backend-prefill=disabled or auto-disable rules)."
)
SIGQUIT_WALL_S = 10.0
# Source: SGLang 0.5.23 srt/model_executor/runner_backend_utils/__init__.py.
CAPTURE_ADVICE = (
    "Possible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
    "2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)\n"
    "3. disable decode CUDA graph by --cuda-graph-backend-decode=disabled. (Not recommended. Huge performance loss)"
)
NCCL_WORDS = {
    "NCCL_PROTO": ("ll", "ll128", "simple"),
    "NCCL_ALGO": ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"),
}


@dataclass(frozen=True)
class Loaded:
    """What the load found out: each rank's NCCL settings, and the startup times that /server_info reports."""

    environments: Sequence[Mapping[str, str]]
    startup_time: dict[str, Any]


class Load:
    """One load of one server. A rank that dies in it ends the launcher, as in the real engine."""

    def __init__(self, plan: Plan, ranks: Ranks, knobs: Knobs, clock: Clock, load_s: float, nodes: Nodes) -> None:
        self._plan, self._ranks, self._knobs, self._clock = plan, ranks, knobs, clock
        self._load_s = load_s
        self._nodes = nodes
        self._all = logs.each_rank(plan.ranks, plan.local)
        self._zero = logs.rank_prefix(plan.local[0], plan.ranks)
        self._deadline = clock.now()
        self._free = plan.memory.total - 0.4

    def run(self) -> Loaded:
        started = self._clock.now()
        environments = self._init()
        self._weights("weights", self._plan.target.architecture, self._plan.memory.weights)
        weights_s = self._clock.now() - started
        if self._plan.draft is not None:
            self._draft()
        kv_from = self._clock.now()
        self._kv_cache()
        kv_s = self._clock.now() - kv_from
        graphs = self._graphs()
        self._with_other_nodes(lambda: self._nodes.together(self._check_ranks))
        self._finish()
        startup = {
            "load_weight": weights_s,
            "kv_cache_allocation": kv_s,
            "scheduler_e2e": self._clock.now() - started,
            "cuda_graph": graphs,
            "tokenizer_e2e": self._clock.now() - started,
        }
        parts = ", ".join(f"{name}={seconds:.2f}" for name, seconds in graphs.items())
        logs.line(
            f"Engine startup timings (s): load_weight={weights_s:.2f}, kv_cache_allocation={kv_s:.2f}, "
            f"scheduler_e2e={startup['scheduler_e2e']:.2f}, cuda_graph={{{parts}}}, "
            f"tokenizer_e2e={startup['tokenizer_e2e']:.2f}"
        )
        return Loaded(environments, startup)

    def _spend(self, phase: str, share: float = 1.0) -> None:
        """Let ``share`` of a phase pass, watching the ranks; strike with the faults of the phase first."""
        if self._knobs["crash_in_load_at"] == phase:
            self.die(str(self._knobs["crash_message"] or OUT_OF_MEMORY))
        if self._knobs["hang_in_load_at"] == phase:
            self._deadline = float("inf")
        self._deadline += self._load_s * SHARES[phase] * share
        while (left := self._clock.wall_until(self._deadline)) > 0:
            time.sleep(min(left, 0.1))
            self._check_ranks()
            self._with_other_nodes(self._nodes.check)
        self._check_ranks()

    def _with_other_nodes(self, work: Callable[[], T]) -> T:
        """Do what takes the other nodes; without one of them a scheduler fails."""
        try:
            return work()
        except (Closed, NotJoined) as error:
            self.die(str(error))

    def _check_ranks(self) -> None:
        dead = self._ranks.first_dead()
        if dead is None:
            return
        child, status = dead
        self._ranks.kill_tree(include_parent=False)
        raise RuntimeError(
            f"Rank {child.name.rpartition('_')[2]} scheduler died during initialization (exit code: {status}). If exit "
            "code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check."
        )

    def die(self, message: str) -> NoReturn:
        """End as the real engine does when a scheduler fails in the load: traceback, SIGQUIT, SIGKILL of the tree."""
        logs.line(scheduler_traceback(message), self._zero)
        self._ranks.fail()
        time.sleep(SIGQUIT_WALL_S)
        raise RuntimeError(f"rank 0 did not send SIGQUIT within {SIGQUIT_WALL_S} s after: {message}")

    def _init(self) -> Sequence[Mapping[str, str]]:
        own = self._ranks.environments()
        self._all("Init parallel begin.")
        if self._plan.ranks > 1:
            logs.line("sglang is using nccl==2.28.9", self._zero)
        environments = self._with_other_nodes(lambda: self._nodes.join(own, self._check_ranks))
        self._deadline = max(self._deadline, self._clock.now())
        self._say_nccl(environments)
        self._refuse_bad_nccl(environments)
        self._spend("init")
        self._all(f"Init parallel ends. elapsed={self._load_s * SHARES['init']:.2f} s")
        self._all("Memory baseline taken. mem usage=0.94 GB")
        self._ranks.hold_memory(960)
        return environments

    def _say_nccl(self, environments: Sequence[Mapping[str, str]]) -> None:
        """Write what NCCL_DEBUG=INFO makes NCCL write.  Source: nccl_info_ll.log."""
        host = socket.gethostname()
        mine = list(zip(self._plan.local, self._ranks.schedulers, environments, strict=False))
        for rank, child, environment in mine:  # the first ones are this node's
            if environment.get("NCCL_DEBUG") != "INFO" or self._plan.ranks < 2:
                continue
            pid = child.process.pid
            for name in sorted(set(environment) - {"NCCL_DEBUG"}):
                logs.raw(f"{host}:{pid}:{pid} [{rank}] NCCL INFO {name} set by environment to {environment[name]}\n")

    def _refuse_bad_nccl(self, environments: Sequence[Mapping[str, str]]) -> None:
        if self._plan.ranks < 2:
            return
        for environment in environments:
            for name, words in NCCL_WORDS.items():
                bad = unknown_word(environment.get(name, ""), words)
                if bad is not None:
                    logs.raw(
                        f"\n{logs.stamp()} {socket.gethostname()}:{os.getpid()}:{os.getpid()} [0] graph/tuning.cc:104 "
                        f'NCCL WARN Unrecognized element token "{bad}" when parsing "{environment[name]}"\n'
                    )
                    self.die("RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)")

    def _weights(self, phase: str, architecture: str, gib: float) -> None:
        self._all(f"Load weight begin. avail mem={self._free:.2f} GB")
        shards = 64 if gib > 10 else 1
        began = time.monotonic()
        pieces = min(shards, 8)
        for piece in range(pieces):
            self._progress(piece * shards // pieces, shards, began)
            self._spend(phase, 1.0 / pieces)
        self._progress(shards, shards, began)
        logs.raw("\n")
        self._free -= gib
        self._all(
            f"Load weight end. elapsed={self._load_s * SHARES[phase]:.2f} s, type={architecture}, "
            f"avail mem={self._free:.2f} GB, mem usage={gib:.2f} GB."
        )
        self._ranks.hold_memory(int((self._plan.memory.total - self._free + 0.5) * 1024))

    def _progress(self, done: int, shards: int, began: float) -> None:
        elapsed = time.monotonic() - began
        rate = f"{done / elapsed:6.2f}it/s" if done and elapsed > 0 else "?it/s"
        logs.raw(
            f"\rMulti-thread loading shards: {100 * done // shards:3d}% Completed | {done}/{shards} "
            f"[{int(elapsed) // 60:02d}:{int(elapsed) % 60:02d}<?, {rate}]"
        )

    def _draft(self) -> None:
        self._all("SPECULATIVE_MOE_RUNNER_BACKEND is not initialized, using auto backend")
        self._all("SPECULATIVE_MOE_A2A_BACKEND is not initialized, using none backend")
        assert self._plan.draft is not None
        error = draft_context_error(self._plan, os.environ)
        if error is not None:
            self.die(f"ValueError: {error}")
        if self._plan.context_len > self._plan.draft.context:
            self._all(f"Overriding the draft model's max_position_embeddings to {self._plan.context_len}.")
        self._all("Memory baseline taken. mem usage=0.00 GB")
        self._weights("draft", self._plan.draft.architecture, self._plan.memory.draft)

    def _kv_cache(self) -> None:
        self._spend("kv_cache")
        memory = self._plan.memory
        if memory.pool <= 0:
            self.die(
                "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
                f"Current value: mem_fraction_static={self._plan.arguments['mem_fraction_static']}"
            )
        models = 2 if self._plan.draft is not None else 1
        for model in range(models):
            size = memory.pool * (0.97 if model == 0 else 0.03) if models == 2 else memory.pool
            self._free -= size
            self._all(
                f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {memory.tokens}, K size: {size / 2:.2f} GB, "
                f"V size: {size / 2:.2f} GB"
            )
            self._all(f"Memory pool end. avail mem={self._free:.2f} GB")
        self._ranks.hold_memory(int((memory.total - self._free + 0.5) * 1024))

    def _graphs(self) -> dict[str, float]:
        names = ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend")
        times = dict.fromkeys(names, 0.0)
        whole = self._load_s * SHARES["graphs"]
        if self._plan.draft is None:
            captures: tuple[tuple[str, str, int, float], ...] = (("target decode", "decode", 1, 1.0),)
        else:
            draft_tokens = self._plan.draft_tokens
            captures = (
                ("target verify", "target_verify", draft_tokens, 0.6),
                ("draft decode", "draft_decode", 1, 0.2),
                ("draft extend", "draft_extend", draft_tokens, 0.2),
            )
        for title, key, tokens, share in captures if self._plan.graphs else ():
            if key != "draft_extend":
                self._all(PREFILL_GRAPHS_OFF)
            self._capture(title, tokens, share)
            times[key] = whole * share
        self._adaptive_states()
        self._ranks.hold_memory(self._plan.memory.held_mib)
        return times

    def _capture(self, title: str, tokens: int, share: float) -> None:
        sizes = graph_batch_sizes(self._plan)
        used = self._plan.memory.graphs * share
        self._all(
            f"Capture {title} CUDA graph begin. backend=full, num_tokens_per_req={tokens}, bs={sizes}, "
            f"avail mem={self._free:.2f} GB"
        )
        self._spend("graphs", share)
        if self._free < used:
            self.die(f"Exception: Capture cuda graph failed: {OUT_OF_MEMORY.partition(' ')[2]}\n{CAPTURE_ADVICE}")
        self._free -= used
        logs.raw(
            f"Capturing batches (bs=1 avail_mem={self._free:.2f} GB): 100%|##########| {len(sizes)}/{len(sizes)} "
            f"[00:00<00:00, 12.65it/s]\n".replace("#", "\u2588")
        )
        self._all(
            f"Capture {title} CUDA graph end. elapsed={self._load_s * SHARES['graphs'] * share:.2f} s, "
            f"mem usage={used:.2f} GB, avail mem={self._free:.2f} GB."
        )

    def _adaptive_states(self) -> None:
        if not self._plan.adaptive:
            return
        union = sorted({step for tier in self._plan.adaptive.values() for step in tier})
        steps = self._plan.steps
        first = list(self._plan.adaptive[min(self._plan.adaptive)])
        self._all(f"AdaptiveSpeculativeParams initialized: steps={steps}, candidate_steps={first}")
        for other in union:
            if other != steps:
                self._all(f"Built adaptive runtime state steps={other}: elapsed=0.00s, mem=0.00GB")

    def _finish(self) -> None:
        self._spend("finish")
        arguments = self._plan.arguments
        if self._plan.node_rank > 0:  # what follows is said by rank 0 alone
            return
        logs.line(
            f"max_total_num_tokens={self._plan.memory.tokens}, "
            f"chunked_prefill_size={arguments['chunked_prefill_size']}, "
            f"max_prefill_tokens={arguments['max_prefill_tokens']}, max_running_requests={self._plan.max_running}, "
            f"context_len={self._plan.context_len}, available_gpu_mem={self._free:.2f} GB",
            self._zero,
        )
        self._all("Init Unified Radix Cache. Components: (<ComponentType.FULL: 0>,). Tree Core: RustUnifiedTreeCore")
        self._all(
            "Tree cache initialized: source=default impl=UnifiedRadixCache hybrid_swa=False hybrid_ssm=False "
            "hicache_attached=False"
        )


def graph_batch_sizes(plan: Plan) -> list[int]:
    sizes = plan.arguments["cuda_graph_config"]["decode"]["bs"]
    return [size for size in sizes if size <= plan.max_running] or [1]


def unknown_word(value: str, words: Sequence[str]) -> str | None:
    """Return the first element of an NCCL list that NCCL would not know; lists, ``^`` and ``func:`` are legal."""
    for element in re.split(r"[,;]", value.removeprefix("^")):
        word = element.rpartition(":")[2].strip().removeprefix("^")
        if value and word.lower() not in words:
            return word
    return None


def scheduler_traceback(message: str) -> str:
    """Return the line block of a scheduler exception.  Source: crash_layer_out_of_range.log."""
    return (
        "Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "sglang/srt/managers/scheduler.py", line 6340, in run_scheduler_process\n'
        "    scheduler.run_event_loop()\n"
        f"{message}\n"
    )
