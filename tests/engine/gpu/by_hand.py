"""The deployed server against one that a person launched by hand, on the same GPU, measured in turns.

Both are alive while either is measured, so that the machine is the same for both, and each run of one is followed at
once by the same run of the other: a rented machine slows down for seconds at a time, and so it slows both. The pair is
started anew several times, since a start may be luckier than another.
"""

import contextlib
import dataclasses
import math
import os
import signal
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import real_host
from gpu_lab import Lab, metrics

from ops.bench import stats
from ops.bench.measure import measure
from ops.bench.student import t_quantile
from ops.cli.output import Progress
from ops.config.inventory import load_inventory
from ops.flows import gating
from ops.flows.hosts import run_on
from ops.gates.prompt_set import speed_prompts
from ops.model.gate import Run

PORT = 8100
ROUNDS = 60
"""Rounds a pair; each is one run of every prompt on either server."""
ARMS = ("deployed", "by_hand")
PAIRS = 4
TOKENS = 256
SCRIPT = Path(__file__).with_name("by_hand.sh")


def compared(lab: Lab, needs_s: float) -> None:
    """Measure PAIRS pairs of servers, and compare them run by run."""
    for pair in range(PAIRS):
        lab.once(f"by-hand/{pair}", needs_s, partial(_pair, lab, anew=pair > 0))
    lab.found.keep("by-hand", interval([lab.state[f"by-hand/{pair}"] for pair in range(PAIRS)]))


def interval(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Ratio of the deployed server's rate to the other's, with its 95 % interval over all rounds of all pairs.

    A round is what varies: the mean log ratio of its neighbouring runs. Student's t over rounds.
    """
    by_pair = [_round_means(pair) for pair in pairs]
    logs = [mean for means in by_pair for mean in means]
    middle, sd = statistics.fmean(logs), statistics.stdev(logs)
    reach = t_quantile(1 - stats.ERROR / 2, len(logs) - 1) * sd / math.sqrt(len(logs))
    return {
        "ratio": round(math.exp(middle), 4),
        "low": round(math.exp(middle - reach), 4),
        "high": round(math.exp(middle + reach), 4),
        "rounds": len(logs),
        "sd_of_a_round": round(sd, 4),
        "ratio_by_pair": [round(math.exp(statistics.fmean(means)), 4) for means in by_pair],
        **{arm: stats.summary([run["rate_tok_s"] for pair in pairs for run in pair[arm]]) for arm in ARMS},
    }


def _round_means(pair: dict[str, Any]) -> list[float]:
    """The mean log ratio of each round: one run of every prompt on either server."""
    runs = list(zip(pair["deployed"], pair["by_hand"], strict=True))
    assert all(one["prompt"] == other["prompt"] for one, other in runs)
    logs = [math.log(one["rate_tok_s"] / other["rate_tok_s"]) for one, other in runs]
    size = len({one["prompt"] for one, _ in runs})
    return [statistics.fmean(logs[start : start + size]) for start in range(0, len(logs), size)]


def _pair(lab: Lab, *, anew: bool) -> dict[str, Any]:
    with launched(lab) as healthy:
        if anew:  # while the other one loads
            host = lab.host.on_host("restart")
            assert host["exit_code"] == 0, lab.host.explain(host)
        seconds = healthy()
        before = lab.get("/metrics")
        found = _in_turns(lab)
        after = lab.get("/metrics")
    return {**found, "start_s": seconds, "device_timer": _device_timer(before, after)}


def _in_turns(lab: Lab) -> dict[str, Any]:
    inventory = load_inventory(lab.host.project, lab.host.inventory)
    arms: dict[str, list[Run]] = {arm: [] for arm in ARMS}
    with run_on(inventory.hosts[0], Progress()) as run:
        deployed = gating.server(run, str(run.facts["links"]["current"]))
        by_hand = dataclasses.replace(deployed, bound=(lab.host.box.address, PORT))
        servers = {"deployed": deployed, "by_hand": by_hand}
        prompts = speed_prompts(deployed.profile.traffic.prompts)
        # The first round warms both up. Each goes first every other time.
        for number in range(-len(prompts), ROUNDS * len(prompts)):
            for arm in sorted(ARMS, reverse=number % 2 == 0):
                runs = measure(
                    servers[arm], prompts, concurrency=1, runs=1, tokens=TOKENS, timeout_s=120, first=max(number, 0)
                )
                if number >= 0:
                    arms[arm] += runs
    return {arm: [run.model_dump() for run in runs] for arm, runs in arms.items()}


def _device_timer(before: str, after: str) -> dict[str, Any]:
    """GPU seconds by category while the deployed server was measured, and milliseconds a verify cycle."""
    name, calls = "sglang:forward_execution_seconds_total", "sglang:spec_verify_calls_total"
    first, last = (metrics(text, name, "category") for text in (before, after))
    spent = {category: round(value - first.get(category, 0.0), 6) for category, value in last.items()}
    cycles = sum(metrics(after, calls, "-").values()) - sum(metrics(before, calls, "-").values())
    a_cycle = {category: round(1000 * s / cycles, 4) for category, s in spent.items()} if cycles else {}
    return {"seconds": spent, "cycles": cycles, "ms_a_cycle": a_cycle}


@contextmanager
def launched(lab: Lab) -> Iterator[Callable[[], float]]:
    """A server as a person starts it: this shell's environment, the engine's own command line, no supervisor.

    Gives a function that waits until it serves and returns the seconds since its start.
    """
    log = lab.host.project / "by-hand.log"
    given = {name.removeprefix("OPS_ENV__"): value for name, value in lab.host.environment.items()}
    # The same home, so that kernels which the deployed engine compiled are not compiled again.
    variables = {**os.environ, **given, "HOME": str(lab.host.box.layout.home)}
    variables["SGLANG_ENABLE_METRICS_DEVICE_TIMER"] = "1"
    words = [SCRIPT, lab.host.engine_python, lab.host.models, lab.host.box.address, PORT]
    begun = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(map(str, words)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=variables,
            start_new_session=True,
        )

    def healthy() -> float:
        real_host.wait_for("the server launched by hand", lambda: _healthy(lab, process), 300, 0.5)
        return round(time.monotonic() - begun, 1)

    try:
        yield healthy
    finally:
        _end(lab, process)


def _healthy(lab: Lab, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, f"it ended with {process.returncode}, see by-hand.log"
    try:
        with urllib.request.urlopen(f"http://{lab.host.box.address}:{PORT}/health", timeout=25) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _end(lab: Lab, process: "subprocess.Popen[bytes]") -> None:
    """End the server and all that it started, and wait until its GPU memory is back: the next deploy looks."""
    members = [pid for pid in real_host.pids() if _session(pid) == process.pid]
    for pid in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(10)
    left = lab.wait_gone(members, idle=False)["left"]
    assert not left, left


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
