"""docs/results/engine-gpu.{json,md}, made of what a run found."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import engine_results as results
from gpu_claims import NCCL_PROFILES, claims

STEPS = (0, 1, 2, 3, 5)


def write(state: Mapping[str, Any], failures: Mapping[str, str], folder: Path) -> None:
    """Write the page and the document."""
    judged = [{"claim": words, "holds": holds, "seen": seen} for words, holds, seen in claims(state)]
    document = {"date": results.today(), **state, "claims": judged, "failures": dict(failures)}
    results.write("engine-gpu", document, page(document), folder)


def page(found: Mapping[str, Any]) -> str:
    """The page of a run."""
    machine = found.get("machine", {})
    again = f"; the page made again by `rewrite.py` on {found['rewritten']}" if "rewritten" in found else ""
    parts = [
        "# The real engine on a GPU",
        f"Written by `tests/engine/gpu/run.py` on {found['date']}, project {found.get('project')}{again}. "
        f"{_versions(found)}.",
        f"{'; '.join(_gpus(found))}; {machine.get('cpu')}, {machine.get('cores')} cores, "
        f"{machine.get('memory_gib')} GiB. Raw `/server_info`, nvidia-smi before and after, log digests, whole error "
        "messages, every command: `engine-gpu.json`.",
        "## Claims",
        _claims(found["claims"]),
        f"## Steps\n\n{HOW}{DISTURBED if 'second/table/0' in found else ''}",
        _steps(found),
        *_hand(found),
        *_graphs(found),
        *_nccl(found),
    ]
    if found["failures"]:
        rows = [(phase, _cut(words)) for phase, words in found["failures"].items()]
        parts.append("## Failures\n\n" + results.table(["phase", "error"], rows))
    return "\n\n".join([*parts, "## Commands", results.table(["host", "command", "exit code", "s"], _commands(found))])


HOW = "By `ops deploy` and its gate, one user, 256 tokens a run, prompts of the gate."
DISTURBED = " Two hosts with one GPU each worked side by side: these are not the speeds of an idle machine."
CELL = 300
"""Characters of a message in a table; the document has the rest."""


def _cut(words: str) -> str:
    """The first line of a message, as far as a table cell holds it."""
    first = words.strip().partition("\n")[0]
    return first if len(first) <= CELL else f"{first[:CELL].rpartition(' ')[0]} …"


def _claims(judged: Sequence[Mapping[str, Any]]) -> str:
    marks = {True: "yes", False: "**NO**", None: "not run"}
    rows = [(claim["claim"], marks[claim["holds"]], _cut(claim["seen"])) for claim in judged]
    return results.table(["claim", "holds", "seen"], rows)


def _versions(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.get("versions", {}).items())


def _gpus(found: Mapping[str, Any]) -> list[str]:
    return [f"{gpu['name']} {gpu['uuid']}, driver {gpu['driver_version']}" for gpu in found.get("gpus", [])]


def _steps(found: Mapping[str, Any]) -> str:
    header = ["steps", "GPU", "outcome", "tok/s", "ratio to its baseline (95 %)", "runs", "accept length"]
    rows = [
        _row(steps, second, found[f"{prefix}table/{steps}"])
        for steps in STEPS
        for prefix, second in (("", steps == 1 and "second/table/0" in found), ("second/", True))
        if f"{prefix}table/{steps}" in found
    ]
    return results.table([*header, "start, s", "gate, s"], rows)


def _commands(found: Mapping[str, Any]) -> Iterator[tuple[str, str, int, str]]:
    """The commands of each host in their order, with repetitions in one row."""
    given = sorted(found.get("commands", []), key=lambda row: str(row.get("host", "gpu-lab")))
    same = ("host", "command", "exit_code")
    for (host, command, code), rows in itertools.groupby(given, key=lambda row: tuple(row.get(key) for key in same)):
        seconds = [row["seconds"] for row in rows]
        times = f" x {len(seconds)}" if len(seconds) > 1 else ""
        spread = f"{min(seconds)} to {max(seconds)}" if times else str(seconds[0])
        yield str(host), f"`{command}`{times}", code, spread


def _row(steps: int, second: bool, found: Mapping[str, Any]) -> tuple[object, ...]:
    figures, phases = found["figures"], found["phases"]
    outcome = f"{found['outcome']}{' (speed threshold lifted)' if found['threshold_lifted'] else ''}"
    if "baseline" in figures:
        arm = figures["baseline"]["1"]
        rate, ratio, runs = f"{arm['mean']:.1f} (sd {arm['sd']:.1f})", "-", arm["n"]
    elif figures.get("speed"):
        speed = figures["speed"][0]
        rate, runs = f"{speed['tok_s']:.1f}", speed["runs"]
        ratio = f"{speed['ratio']:.3f} ({speed['low']:.3f} to {speed['high']:.3f})" if "ratio" in speed else "-"
    else:
        rate, ratio, runs = "-", "-", "-"
    return (
        steps,
        int(second),
        outcome,
        rate,
        ratio,
        runs,
        figures.get("accept_length", "-"),
        phases.get("start", "-"),
        phases.get("gate", "-"),
    )


def _hand(found: Mapping[str, Any]) -> Iterator[str]:
    if "by-hand" not in found:
        return
    seen = found["by-hand"]
    yield (
        "## Deployed and launched by hand\n\nTwo servers on one GPU, each run of one followed at once by the same run "
        f"of the other; {len(seen['ratio_by_pair'])} pairs of starts, {seen['rounds']} rounds. Deployed "
        f"{seen['deployed']['mean']:.1f} tok/s (sd {seen['deployed']['sd']:.1f}), by hand "
        f"{seen['by_hand']['mean']:.1f} (sd {seen['by_hand']['sd']:.1f}): ratio {seen['ratio']}, 95 % {seen['low']} to "
        f"{seen['high']} (log ratio of a round: sd {seen['sd_of_a_round']}); by pair of starts: "
        f"{', '.join(map(str, seen['ratio_by_pair']))}."
    )
    timer = found["by-hand/0"]["device_timer"]
    yield "## GPU time of a verify cycle (device timer)"
    yield results.table(
        ["category", "ms a cycle", "s in all"],
        [(category, timer["ms_a_cycle"].get(category, "-"), s) for category, s in sorted(timer["seconds"].items())],
    )


def _graphs(found: Mapping[str, Any]) -> Iterator[str]:
    """Ranks capture the same graphs side by side: a row is the slowest of them."""
    slowest: dict[tuple[str, str], tuple[float, float]] = {}
    for step in sorted(found):
        if step.startswith(("table/", "nccl/")) and "graphs" in found[step]:
            for graph in found[step]["graphs"]:
                of = (found[step]["profile"], graph["graph"])
                slowest[of] = max(slowest.get(of, (0.0, 0.0)), (graph["seconds"], graph["gb"]))
    if slowest:
        yield "## CUDA graphs"
        rows = [(*of, seconds, gb) for of, (seconds, gb) in slowest.items()]
        yield results.table(["profile", "graph", "capture, s", "memory of a rank, GB"], rows)


def _nccl(found: Mapping[str, Any]) -> Iterator[str]:
    rows = []
    for profile in NCCL_PROFILES:
        if row := found.get(f"nccl/{profile}"):
            speed = (row["figures"].get("speed") or [{}])[0]
            ratio = f"{speed['ratio']} ({speed['low']} to {speed['high']})" if "ratio" in speed else "-"
            said: dict[str, str] = next(iter(row["nccl_says"].values()), {})
            settings = ", ".join(f"{name}={value}" for name, value in sorted(said.items()))
            rows.append((profile, row["outcome"], speed.get("tok_s"), ratio, settings))
    if rows:
        yield "## NCCL sets over two GPUs"
        yield results.table(
            ["profile", "outcome", "tok/s", "ratio to its baseline (95 %)", "NCCL's own words (rank 0)"], rows
        )
