"""Does every rank hold the environment of the profile? What a file says is no proof; /proc/<pid>/environ is."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ops.gates import wanted
from ops.model.gate import Gate, Learned, Server
from ops.model.verdict import Question, Verdict

ASK = Question("environment", "Does every rank's process hold the profile's environment, and nothing behind its back?")

BY_ENGINE = frozenset(
    {
        "NCCL_CUMEM_ENABLE",
        "NCCL_NVLS_ENABLE",
        "NCCL_GRAPH_MIXING_SUPPORT",
        "NCCL_GRAPH_REGISTER",
        "NCCL_MNNVL_ENABLE",
    }
)
"""Set by SGLang itself before it starts its ranks. Source: SGLang 0.5.23 srt/entrypoints/engine.py:1878-1925."""
LINE = re.compile(r"^\s*(NCCL_[A-Z0-9_]+)\s*=\s*(.*?)\s*$")


def judge(server: Server, learned: Learned) -> Verdict:
    facts = server.facts()
    processes = wanted.own(facts, wanted.release(server))
    return ruling(wanted.ranks(processes), wanted.environment(server), facts.get("nccl_files") or [])


def ruling(
    ranks: Sequence[Mapping[str, Any]], environment: Mapping[str, str], files: Sequence[Mapping[str, str]]
) -> Verdict:
    """Judge the ranks' environments and the files that NCCL reads by itself."""
    evidence: dict[str, Any] = {
        "ranks": len(ranks),
        "variables": sorted(environment),
        "files": [file["path"] for file in files],
    }
    if not ranks or not environment:
        what = "no scheduler process was found" if not ranks else "the release's manifest names no environment"
        return ASK.inconclusive(what, "`ops status`; deploy again when the release is an old one", **evidence)
    problems = [
        f"pid {rank['pid']} ({rank.get('title', '')[:40]}): {problem}"
        for rank in ranks
        if rank.get("environ") is not None
        for problem in differences(rank["environ"], environment)
    ]
    problems += behind(files, environment)
    evidence["problems"] = problems
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return ASK.failed(
            problems[0] + more,
            "start the engine through its unit (`ops start`), and remove what overrides it: then `ops gate`",
            **evidence,
        )
    blank = [rank["pid"] for rank in ranks if rank.get("environ") is None]
    if blank:
        return ASK.inconclusive(
            f"the environment of {len(blank)} of {len(ranks)} ranks cannot be read (pids {blank})",
            "start it with SPT_NOENV=1 (ops renders it; process titles blank the environment), as a user ops can read",
            **evidence,
        )
    return ASK.passed(f"{len(environment)} variables in each of {len(ranks)} ranks", **evidence)


def differences(seen: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Return what is missing, different or too much in one process."""
    found = []
    for name, value in environment.items():
        if name not in seen:
            found.append(f"{name} is missing (wanted {value})")
        elif seen[name] != value:
            found.append(f"{name} is {seen[name]!r}, wanted {value!r}")
    extra = sorted(n for n in seen if n.startswith("NCCL_") and n not in environment and n not in BY_ENGINE)
    return found + [f"{name}={seen[name]} is not of the profile" for name in extra]


def behind(files: Sequence[Mapping[str, str]], environment: Mapping[str, str]) -> list[str]:
    """Return the settings that files add to the profile's; NCCL lets the environment win where both have one.

    Source: NCCL src/misc/param.cc (setEnvFile calls setenv(name, value, 0)).
    """
    found = []
    for file in files:
        for line in file["content"].splitlines():
            setting = LINE.match(line)
            if setting and setting[1] not in environment:
                found.append(f"{file['path']} sets {setting[1]}={setting[2]}, which the profile does not")
    return found


GATE = Gate(ASK.name, ASK.question, 70, judge, needs=("alive",), of_follower=True)
