"""``python -m sglang.launch_server``: parse, resolve, load, serve."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
import time
import warnings
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from . import logs
from .app import build_app
from .arguments import parse
from .clock import Clock
from .knobs import Knobs, claim, shift_draft_layer_ids
from .lifecycle import Lifecycle
from .load import Load
from .nodes import Nodes, follow
from .ranks import Ranks
from .resolve import Plan, resolve
from .server import make_server, random_seed
from .settings import Settings, next_start, read_settings, simulation_folder

# Exit status of uvicorn when its start failed.  Source: crash_port_in_use.log.
STARTUP_FAILURE = 3
ORPHAN_S = 1.7


class Runner(uvicorn.Server):
    """uvicorn without its signal handlers: the lifecycle owns SIGTERM, and SIGINT stops at once."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def main(argv: list[str]) -> None:
    warnings.warn(
        "'python -m sglang.launch_server' is still supported, but 'sglang serve' is the recommended entrypoint.\n"
        "  Example: sglang serve --model-path <model> [options]",
        UserWarning,
        stacklevel=1,
    )
    given, argv = parse(argv)
    folder = simulation_folder()
    settings = read_settings(folder)
    started_at = time.time()
    claim(folder, os.environ, started_at)
    knobs = Knobs(folder, settings.knobs, os.environ, started_at)
    knobs.refresh()
    logs.line(f"SIMULATED x {settings.time_scale:g}: simulated SGLang engine, no GPU, no model")
    start_number = next_start(folder)
    if knobs["rewrite_draft_layer_ids"] and given.get("speculative_draft_model_path"):
        shift_draft_layer_ids(folder, given["speculative_draft_model_path"], int(knobs["rewrite_draft_layer_ids"]))
    try:
        plan = resolve(given, argv, os.environ, settings.gpu_mib, random_seed(settings.seed, start_number))
    except Exception:
        pid = os.getpid()
        logs.line(f"kill_process_tree called: parent_pid={pid}, include_parent=False, pid={pid}")
        raise
    plan = with_knobs(plan, knobs)
    sys.exit(run(plan, settings, knobs, folder, start_number))


def with_knobs(plan: Plan, knobs: Knobs) -> Plan:
    """Return the plan with what faults change silently between request and effect."""
    arguments = dict(plan.arguments)
    max_running, adaptive = plan.max_running, plan.adaptive
    if plan.speculative:
        wanted = knobs["draft_tokens_effective"]
        tokens = int(wanted) if wanted is not None else plan.draft_tokens + int(knobs["draft_tokens_delta"] or 0)
        arguments["speculative_num_draft_tokens"] = tokens
    if knobs["max_running_requests_effective"] is not None:
        max_running = int(knobs["max_running_requests_effective"])
    max_running = max(1, int(max_running * knobs.number("max_running_requests_factor", 1.0)))
    if max_running != plan.max_running:
        arguments["max_running_requests"] = max_running
    if knobs["adaptive_off"] and adaptive:
        logs.line(
            "speculative_adaptive disabled: two-batch overlap is enabled. Falling back to static speculative params."
        )
        arguments["speculative_adaptive"] = False
        adaptive = {}
    return dataclasses.replace(plan, arguments=arguments, max_running=max_running, adaptive=adaptive)


def run(plan: Plan, settings: Settings, knobs: Knobs, folder: Path, start_number: int) -> int:
    """Load and serve; return the exit status."""
    logs.line(f"server_args={plan.arguments}")
    set_engine_environment()
    orphan_s = None if knobs["orphans_survive"] else knobs.number("orphan_s", ORPHAN_S)
    clock = Clock(settings.time_scale)
    ranks = Ranks(
        plan.ranks,
        folder,
        int(plan.arguments["base_gpu_id"]),
        knobs["drop_env_in_ranks"],
        orphan_s,
        local=plan.local,
    )
    nodes = Nodes(plan, clock)
    signal.signal(signal.SIGQUIT, _launch_phase_sigquit(ranks))
    if plan.node_rank == 0:
        logs.line("Using default HuggingFace chat template with detected content format: string")
    load = Load(plan, ranks, knobs, clock, knobs.number("load_s", settings.load_s), nodes)
    loaded = load.run()
    if plan.node_rank > 0:
        return follow(plan, ranks, nodes, clock, load.die)
    server = make_server(plan, settings, knobs, clock, ranks, loaded, start_number)
    if knobs["crash_in_load_at"] == "warmup":
        server.crash_on_next = True
    lifecycle = Lifecycle(server, nodes)
    config = uvicorn.Config(
        build_app(server, lifecycle.lifespan),
        host=plan.arguments["host"],
        port=int(plan.arguments["port"]),
        log_config=logs.uvicorn_config(),
        timeout_keep_alive=5,
    )
    runner = Runner(config)
    lifecycle.attach(runner)
    try:
        asyncio.run(runner.serve())
    except SystemExit:
        # uvicorn leaves this way when it could not bind; the exit status is decided below.
        if runner.started:
            raise
    ranks.kill_tree(include_parent=False)
    return 0 if runner.started else STARTUP_FAILURE


def set_engine_environment() -> None:
    """Add what the real engine adds to the environment of its ranks.

    Source: SGLang 0.5.23 srt/entrypoints/engine.py:1878-1925.
    """
    os.environ.setdefault("NCCL_CUMEM_ENABLE", "0")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"
    os.environ["SGLANG_RUN_ID"] = f"sglang-run-{time.time()}-{os.getpid()}"


def _launch_phase_sigquit(ranks: Ranks) -> Any:
    def handler(number: int, frame: FrameType | None) -> None:
        logs.line("Received sigquit from a child process. It usually means the child failed.")
        ranks.kill_tree(include_parent=True)

    return handler


if __name__ == "__main__":
    main(sys.argv[1:])
