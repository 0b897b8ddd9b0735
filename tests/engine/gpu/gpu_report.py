"""What a GPU run has to show, and docs/results/engine-gpu.{json,md} made of what it found."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import engine_results as results

STEPS = (0, 1, 2, 3, 5)
LOW, HIGH = 0.97, 1.03
NCCL_PROFILES = ("lab-gpu-tp2-simple", "lab-gpu-tp2-ll")
Claim = tuple[str, bool | None, str]
"""A claim, whether it holds (None: not run), and what was seen."""


def claims(state: Mapping[str, Any]) -> list[Claim]:
    """Judge what was found so far."""
    return [*_gate_claims(state), *_hand_claims(state), *_clean_claims(state), *_nccl_claims(state)]


def _claim(state: Mapping[str, Any], step: str, words: str, judge: Any) -> Claim:
    if step not in state:
        return (words, None, "not run")
    holds, seen = judge(state[step])
    return (words, bool(holds), str(seen))


def _refused_by(found: Mapping[str, Any], check: str, code: int = 3) -> tuple[bool, str]:
    holds = found["exit_code"] == code and found["checks"].get(check) == "fail"
    return holds, f"exit {found['exit_code']}, {check} {found['checks'].get(check)}: {_words(found, check)}"


def _words(found: Mapping[str, Any], check: str) -> str:
    words = found["words"]
    return str(words.get(check, found["message"]) if isinstance(words, dict) else words)


def _gate_claims(state: Mapping[str, Any]) -> Iterator[Claim]:
    yield _claim(
        state,
        "table/5",
        "the gate admits 5 steps",
        lambda f: (
            f["exit_code"] == 0 and f["verdict"] == "pass" and not f["threshold_lifted"],
            f"exit {f['exit_code']}, {f['message']}",
        ),
    )
    yield _claim(state, "table/1", "the gate refuses 1 step as slower", lambda f: _refused_by(f, "speed"))
    yield _claim(
        state, "random-draft", "the gate refuses a random draft by acceptance", lambda f: _refused_by(f, "acceptance")
    )
    yield _claim(
        state,
        "wiring/deploy",
        "other layer ids are refused before anything is touched",
        lambda f: (f["exit_code"] == 2 and "layer ids" in f["message"], f"exit {f['exit_code']}: {f['message']}"),
    )
    yield _claim(
        state,
        "wiring/start",
        "the gate refuses an engine that loaded other layer ids, by the pinned wiring",
        lambda f: (
            f["exit_code"] != 0
            and f["checks"].get("wiring") == "fail"
            and not f["admitted"]
            and f.get("loaded_anew", False),
            f"exit {f['exit_code']}: {f['words']}; accept length {f['accept_length']}",
        ),
    )


def _hand_claims(state: Mapping[str, Any]) -> Iterator[Claim]:
    yield _claim(
        state,
        "by-hand",
        f"deployed is as fast as launched by hand (the interval holds 1 and lies in {LOW} to {HIGH})",
        lambda f: (
            LOW <= f["low"] <= 1 <= f["high"] <= HIGH,
            f"{f['ratio']} ({f['low']} to {f['high']}), n={f['deployed']['n']} and {f['by_hand']['n']}",
        ),
    )


def _clean_claims(state: Mapping[str, Any]) -> Iterator[Claim]:
    for step, what in (
        ("stop", "stop"),
        ("stop/last", "stop of an engine that just lost a rank"),
        ("nccl/stop", "stop on two GPUs"),
    ):
        yield _claim(
            state,
            step,
            f"{what} leaves no process and no GPU memory",
            lambda f, may_be_down=step == "stop/last": (
                f["exit_code"] == 0
                and (f["processes"] > 0 or may_be_down)
                and not f["processes_after"]
                and not f["after"]["left"],
                f"{f['processes']} processes and {_mib(f['before'])} before, {f['processes_after']} and "
                f"{_mib(f['after'])} after; {f['after']['left'] or 'nothing left'}",
            ),
        )
    for victim in ("launcher", "rank"):
        yield _claim(
            state,
            f"kill/{victim}",
            f"kill -9 of the {victim} leaves no process of that engine and none of its GPU memory",
            lambda f: (
                not f["after"]["left"] and f["processes"] > 0,
                f"{f['processes']} processes and {_mib(f['before'])} before; after {f['after']['seconds']} s "
                f"{f['after']['left'] or 'nothing left'}; "
                + (f"served again after {f['serves_again_s']} s" if "serves_again_s" in f else "then a stop"),
            ),
        )
    yield _claim(
        state,
        "rollback",
        "a rollback leaves nothing of the release before it",
        lambda f: (
            f["exit_code"] == 0 and not f["after"]["left"] and not f["strangers"],
            f"exit {f['exit_code']}, {f['profile']} serves; {_mib(f['before'])} before, {_mib(f['after'])} after; "
            f"{f['after']['left'] or 'nothing left'}",
        ),
    )


def _nccl_claims(state: Mapping[str, Any]) -> Iterator[Claim]:
    if len(state.get("gpus", [])) == 1:
        return
    for profile in NCCL_PROFILES:
        yield _claim(
            state,
            f"nccl/{profile}",
            f"{profile}: every rank holds its NCCL set, and NCCL says that it read it",
            lambda f: (
                len(f["ranks"]) == 2
                and len({tuple(sorted(held.items())) for held in f["ranks"].values()}) == 1
                and _echoed(f) == [],
                f"{len(f['ranks'])} ranks; {_echoed(f) or 'all echoed'}",
            ),
        )


SILENT = ("NCCL_DEBUG",)
"""Variables that NCCL uses without saying so. Source: nccl_info_ll.log, NCCL 2.28.9."""


def _echoed(found: Mapping[str, Any]) -> list[str]:
    """What a rank holds and NCCL did not echo for it."""
    wrong = []
    for held in found["ranks"].values():
        for name, value in held.items():
            said = [words.get(name) for words in found["nccl_says"].values()]
            if name not in SILENT and (len(said) < 2 or any(word != value for word in said)):
                wrong.append(f"{name}={value}, NCCL says {said}")
    return sorted(set(wrong))


def _mib(memory: Mapping[str, Any]) -> str:
    return " + ".join(f"{mib} MiB" for mib in memory["used_mib"].values())


def write(
    state: Mapping[str, Any], failures: Mapping[str, str], folder: Path, earlier: Mapping[str, Any] | None = None
) -> None:
    """Write the page and the document. `earlier`: the document of an earlier run, whose table becomes a section."""
    judged = [{"claim": words, "holds": holds, "seen": seen} for words, holds, seen in claims(state)]
    document = {**state, "date": results.today(), "claims": judged, "failures": dict(failures)}
    if earlier:
        kept = {"date", "project", "versions", "gpus", "machine", *(f"table/{steps}" for steps in STEPS)}
        document["earlier"] = {key: value for key, value in earlier.items() if key in kept}
    results.write("engine-gpu", document, page(document), folder)


def page(found: Mapping[str, Any]) -> str:
    """The page of a run."""
    machine = found.get("machine", {})
    marks = {True: "yes", False: "**NO**", None: "not run"}
    parts = [
        "# The real engine on a GPU",
        f"Written by `tests/engine/gpu/run.py` on {found['date']}, project {found.get('project')}. {_versions(found)}.",
        f"{'; '.join(_gpus(found))}; {machine.get('cpu')}, {machine.get('cores')} cores, "
        f"{machine.get('memory_gib')} GiB. Raw `/server_info`, nvidia-smi before and after, log digests, whole error "
        "messages, every command: `engine-gpu.json`.",
        "## Claims",
        results.table(
            ["claim", "holds", "seen"], [(c["claim"], marks[c["holds"]], _cut(c["seen"])) for c in found["claims"]]
        ),
        f"## Steps\n\n{HOW}",
        _steps(found),
        *_hand(found),
        *_graphs(found),
        *_nccl(found),
        *_earlier(found),
    ]
    if found["failures"]:
        rows = [(phase, _cut(words)) for phase, words in found["failures"].items()]
        parts.append("## Failures\n\n" + results.table(["phase", "error"], rows))
    return "\n\n".join([*parts, "## Commands", results.table(["host", "command", "exit code", "s"], _commands(found))])


HOW = "By `ops deploy` and its gate, one user, 256 tokens a run, prompts of the gate."
CELL = 300
"""Characters of a message in a table; the document has the rest."""


def _cut(words: str) -> str:
    """The first line of a message, as far as a table cell holds it."""
    first = words.strip().partition("\n")[0]
    return first if len(first) <= CELL else f"{first[:CELL].rpartition(' ')[0]} …"


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


def _earlier(found: Mapping[str, Any]) -> Iterator[str]:
    """The table of a run that had the time for all of it."""
    if earlier := found.get("earlier"):
        yield (
            f"## Steps of an earlier run\n\nOf {earlier['date']}, project {earlier['project']}. {_versions(earlier)}; "
            f"{'; '.join(_gpus(earlier))}. {HOW}"
        )
        yield _steps(earlier)


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
        "## Deployed and launched by hand\n\nTwo servers on one GPU, measured in turns; "
        f"{len(seen['pairs'])} pairs of starts. Deployed {seen['deployed']['mean']:.1f} tok/s (sd "
        f"{seen['deployed']['sd']:.1f}), by hand {seen['by_hand']['mean']:.1f} (sd {seen['by_hand']['sd']:.1f}): ratio "
        f"{seen['ratio']}, 95 % {seen['low']} to {seen['high']}. Means by pair: {seen['pairs']}."
    )
    timer = found["by-hand/0"]["device_timer"]
    yield "## GPU time of a verify cycle (device timer)"
    yield results.table(
        ["category", "ms a cycle", "s in all"],
        [(category, timer["ms_a_cycle"].get(category, "-"), s) for category, s in sorted(timer["seconds"].items())],
    )


def _graphs(found: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (found[step]["profile"], graph["graph"], graph["seconds"], graph["gb"])
        for step in sorted(found)
        if step.startswith(("table/", "nccl/")) and "graphs" in found[step]
        for graph in found[step]["graphs"]
    ]
    if rows:
        yield "## CUDA graphs"
        yield results.table(["profile", "graph", "capture, s", "memory, GB"], rows)


def _nccl(found: Mapping[str, Any]) -> Iterator[str]:
    rows = []
    for profile in NCCL_PROFILES:
        if row := found.get(f"nccl/{profile}"):
            speed = (row["figures"].get("speed") or [{}])[0]
            said: dict[str, str] = next(iter(row["nccl_says"].values()), {})
            settings = ", ".join(f"{name}={value}" for name, value in sorted(said.items()))
            rows.append((profile, row["outcome"], speed.get("tok_s"), speed.get("ratio"), settings))
    if rows:
        yield "## NCCL sets over two GPUs"
        yield results.table(["profile", "outcome", "tok/s", "ratio to its baseline", "NCCL's own words (rank 0)"], rows)
