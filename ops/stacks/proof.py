"""Judge what an environment says of itself (`ops.remote.stack_probe`) against its lock. Pure.

The same questions for an image, a running container and a venv on a host; an answer that is missing is inconclusive.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ops.model.stack import KERNEL_PACKAGES, StackLock
from ops.model.verdict import Question, Verdict
from ops.remote.stack import IMAGE_LOCK
from ops.stacks.lock import covers

PACKAGES = Question("packages", "Are the installed packages, file by file, the locked ones?")
PYTHON = Question("python", "Is it the locked Python?")
NCCL = Question("nccl", "Is the NCCL that torch loads the locked one?")
FLAGS = Question("flags", "Does the engine's own parser take the profile's command line?")
KERNELS = Question("kernels", "Do the kernels hold code for the GPUs?")
SHOWN = 5


def request(
    lock: StackLock, *, argv: Sequence[str] = (), deep: bool = True, timeout_s: float = 300.0
) -> dict[str, Any]:
    """What to ask. Args: argv: the engine's command line, to be parsed there. deep: read every installed file."""
    patched: dict[str, str] = {}
    for patch in lock.patches:
        patched |= patch.result
    return {
        "packages": [{"name": p.name, "version": p.version, "record": p.record} for p in lock.packages],
        "patched": patched,
        "deep": deep,
        "argv": list(argv),
        "nccl": lock.package("torch") is not None,
        "kernels": [name for name in KERNEL_PACKAGES if lock.package(name) is not None] if deep else [],
        "timeout_s": timeout_s,
    }


def self_request(software: Mapping[str, Any], *, deep: bool) -> dict[str, Any]:
    """What to ask an environment that carries its lock: is it what that lock says, and is it the release's lock?"""
    file = IMAGE_LOCK if software["kind"] == "image" else f"{software['path']}/stack.lock"
    return {"lock_file": file, "lock_sha256": software["lock"], "deep": deep}


def self_verdict(answer: Mapping[str, Any], *, deep: bool) -> Verdict:
    """Judge the answer to `self_request`."""
    if "problem" in answer:
        return PACKAGES.failed(answer["problem"], "build or install the stack again from its lock", **answer)
    return _packages(answer, deep)


def verdicts(
    answer: Mapping[str, Any], lock: StackLock, asked: Mapping[str, Any], archs: Sequence[str] = ()
) -> list[Verdict]:
    """Judge the answer to `asked`. Args: archs: GPUs it must run on (sm_120 …); empty: not asked."""
    found = [_packages(answer, asked["deep"]), _python(answer, lock)]
    if asked["nccl"]:
        found.append(_nccl(answer, lock))
    if asked["argv"]:
        found.append(_flags(answer, asked["argv"]))
    if asked["kernels"] or archs:
        found.append(_kernels(answer, lock, archs))
    return found


def _packages(answer: Mapping[str, Any], deep: bool) -> Verdict:
    seen = answer["packages"]
    problems = seen["problems"]
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        return PACKAGES.failed(
            "; ".join(problems[:SHOWN]) + more,
            "build or install the stack again from its lock; never change an environment in place",
            problems=problems,
        )
    how = f"{seen['files']} files read" if deep else "lists of files compared"
    return PACKAGES.passed(f"{seen['installed']} packages, {how}", installed=seen["installed"], files=seen["files"])


def _python(answer: Mapping[str, Any], lock: StackLock) -> Verdict:
    if answer["python"] != lock.python:
        return PYTHON.failed(f"it is {answer['python']}, {lock.python} is locked", "build the stack again")
    return PYTHON.passed(answer["python"])


def _nccl(answer: Mapping[str, Any], lock: StackLock) -> Verdict:
    seen = answer.get("nccl") or {"problem": "it did not answer"}
    if "problem" in seen:
        return NCCL.inconclusive(f"torch cannot be asked: {seen['problem']}", "look at `import torch` there", **seen)
    if seen["nccl"] is None:
        return NCCL.inconclusive("torch loads no NCCL library of its own", "ask on a host with GPUs", **seen)
    if seen["nccl"] != lock.nccl:
        return NCCL.failed(
            f"torch loads NCCL {seen['nccl']} from {', '.join(seen['file'])}; {lock.nccl} is locked",
            "look for another NCCL in front of it: LD_LIBRARY_PATH, LD_PRELOAD, a system package of the base image",
            **seen,
        )
    return NCCL.passed(f"NCCL {seen['nccl']}, torch {seen['torch']}", **seen)


def _flags(answer: Mapping[str, Any], argv: Sequence[str]) -> Verdict:
    seen = answer.get("flags") or {"problem": "it did not answer"}
    if "problem" in seen:
        return FLAGS.failed(
            f"the engine refuses the command line: {seen['problem']}",
            "change the profile's flags, or the stack's engine version",
            argv=list(argv),
        )
    return FLAGS.passed(f"{seen['parsed']} words")


def _kernels(answer: Mapping[str, Any], lock: StackLock, archs: Sequence[str]) -> Verdict:
    seen: Mapping[str, Sequence[str]] = answer.get("kernels") or {}
    for name, locked in lock.kernel_archs.items():
        if name in seen and list(seen[name]) != list(locked):
            return KERNELS.failed(
                f"{name} holds code for {', '.join(seen[name]) or 'no GPU'}; locked with {', '.join(locked)}",
                "build the stack again",
                seen=dict(seen),
            )
    if not lock.kernel_archs:
        return KERNELS.skipped("the stack has no GPU kernels")
    missing = {
        name: [arch for arch in archs if not covers(locked, arch)]
        for name, locked in lock.kernel_archs.items()
        if any(not covers(locked, arch) for arch in archs)
    }
    if missing:
        text = "; ".join(f"{name} has no code for {', '.join(m)}" for name, m in missing.items())
        return KERNELS.failed(
            f"{text} (it has {', '.join(a for archs in lock.kernel_archs.values() for a in archs)})",
            "take a stack whose kernels were built for these GPUs: they end in `no kernel image is available`",
        )
    return KERNELS.passed(f"code for {', '.join(archs)}" if archs else "the locked architectures")


def shown(software: Mapping[str, Any]) -> str:
    """An image or an environment as people name it."""
    if software["kind"] == "image":
        return str(software["id"]).rpartition("sha256:")[2][:12]
    return str(software["path"])


def archs_of(gpus: Mapping[str, Any] | None) -> list[str]:
    """The architectures of a host's GPUs, from what nvidia-smi says of them (`compute_cap` 12.0 is sm_120)."""
    caps = {str(device["compute_cap"]) for device in (gpus or {}).get("devices", [])}
    return sorted(f"sm_{cap.replace('.', '')}" for cap in caps if cap.replace(".", "").isdigit())
