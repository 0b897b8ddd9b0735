"""What a GPU run has to show, judged by what it found."""

from collections.abc import Iterator, Mapping
from typing import Any

import real_host

from ops.config import load_nccl

LOW, HIGH = 0.97, 1.03
NCCL_PROFILES = {"lab-gpu-tp2-simple": "lab-simple", "lab-gpu-tp2-ll": "lab-ll"}
"""The NCCL set of each profile."""
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
            f"{f['ratio']} ({f['low']} to {f['high']}), {f['deployed']['n']} pairs of runs",
        ),
    )


def _clean_claims(state: Mapping[str, Any]) -> Iterator[Claim]:
    stops = [("stop", "stop"), ("stop/last", "stop of an engine that just lost a rank")]
    if len(state.get("gpus", [])) != 1:
        stops.append(("nccl/stop", "stop on two GPUs"))
    for step, what in stops:
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
    for profile, nccl in NCCL_PROFILES.items():
        yield _claim(
            state,
            f"nccl/{profile}",
            f"{profile}: every rank holds its NCCL set, and NCCL says that it read it",
            lambda f, nccl=nccl: (
                f["exit_code"] == 0
                and len(f["ranks"]) == 2
                and len({tuple(sorted(held.items())) for held in f["ranks"].values()}) == 1
                and _missing(f, nccl) == []
                and _echoed(f) == [],
                f"exit {f['exit_code']}, {len(f['ranks'])} ranks; {_missing(f, nccl) or _echoed(f) or 'all echoed'}",
            ),
        )


SILENT = ("NCCL_DEBUG", "NCCL_DEBUG_FILE")
"""Variables that NCCL uses without saying so. Source: nccl_info_ll.log, NCCL 2.28.9."""


def _missing(found: Mapping[str, Any], nccl: str) -> list[str]:
    """What a rank does not hold of the NCCL set."""
    wanted = load_nccl(real_host.REPOSITORY, nccl).env
    return [
        f"{rank} holds {name}={held.get(name)}, the set has {value}"
        for rank, held in found["ranks"].items()
        for name, value in wanted.items()
        if held.get(name) != value
    ]


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
