"""Read the engine's log: load phases, fatal lines, causes of death.

Source: recordings of SGLang 0.5.17 (CUDA) and 0.5.23 (CPU) under `tests/recordings`, and 0.5.23's source where a line
names it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

READY = "The server is fired up and ready to roll"
"""Printed once, also when the port could not be bound: a claim, not a proof."""

PHASES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("arguments", re.compile(r"server_args=")),
    ("distributed init", re.compile(r"Init (parallel|torch distributed) begin")),
    ("load weights", re.compile(r"Load weight begin")),
    ("KV cache", re.compile(r"KV Cache is allocated")),
    ("CUDA graphs", re.compile(r"Capture .*(cuda|CUDA) graph begin")),
    ("HTTP server", re.compile(r"Uvicorn running on|Started server process")),
    ("warm-up", re.compile(r"Prefill batch")),
    ("ready", re.compile(READY)),
)
"""Load phases in order, each with the line that begins it."""

PREFILL_OR_DECODE = re.compile(r"(Prefill|Decode) batch")
"""Lines by which a busy engine shows that it advances."""


@dataclass(frozen=True)
class Cause:
    """Why an engine died, in words for the operator."""

    name: str
    message: str
    remedy: str


@dataclass(frozen=True)
class _Rule:
    name: str
    pattern: re.Pattern[str]
    message: str
    remedy: str


_RULES = (
    _Rule(
        "unknown-flag",
        re.compile(r"error: (unrecognized arguments: .*|ambiguous option: .*|argument .*)"),
        "the engine refuses a flag: {0}",
        "the host has another engine version than the profile's stack pins; compare with the engine's own --help",
    ),
    _Rule(
        "port-in-use",
        re.compile(r"\[Errno 98\].*"),
        "its port was taken: {0}",
        "`ops status` names who holds the port; stop that process or change engine.port",
    ),
    _Rule(
        "out-of-memory-pool",
        re.compile(r"Not enough memory\. Please try to increase --mem-fraction-static.*"),
        "too little memory for the KV pool: {0}",
        "raise engine.mem_fraction_static of this profile (weights, draft and pool share it)",
    ),
    _Rule(
        "out-of-memory-graphs",
        re.compile(r"Capture cuda graph failed: .*"),
        "out of memory while capturing CUDA graphs: {0}",
        "lower cuda-graph-max-bs first, then engine.mem_fraction_static",
    ),
    _Rule(
        "nccl-invalid-usage",
        re.compile(r".*NCCL error.*invalid usage.*|.*ncclInvalidUsage.*"),
        "NCCL refuses a setting: {0}",
        "compare the profile's NCCL set with the names and values NCCL knows: ops nccl show",
    ),
    _Rule(
        "shared-memory",
        re.compile(r".*(Error while creating shared memory segment|/dev/shm/nccl-).*"),
        "shared memory is too small: {0}",
        "mount a larger /dev/shm (8 GiB, 32 GiB for 8 GPUs), or run the container with --ipc=host",
    ),
    _Rule(
        "shapes-do-not-match",
        re.compile(r"mat1 and mat2 shapes cannot be multiplied.*"),
        "draft and target do not fit: {0}",
        "compare the draft's hidden size and layer ids with the target: ops profile show",
    ),
    _Rule(
        "container-refused",
        re.compile(r"docker: (Error response from daemon: .*)"),
        "Docker did not start the container: {0}",
        "ask Docker on the host: docker info, docker ps --all; `ops verify` compares image and container",
    ),
    _Rule(
        "too-many-arguments-unset",
        re.compile(r"TypeError: '>' not supported between instances of 'NoneType' and 'int'"),
        "speculative-num-steps was set without topk and draft tokens",
        "set steps, topk and draft_tokens together",
    ),
    _Rule(
        "kernel-too-old",
        re.compile(r".*is installed with version .*, which is less than the minimum required version.*"),
        "a kernel package is older than the engine needs: {0}",
        "install the pinned stack as a whole; do not upgrade parts of it",
    ),
    _Rule(
        "no-kernel-image",
        re.compile(r".*no kernel image is available for execution on the device.*"),
        "the installed kernels were not built for this GPU",
        "use a stack whose architectures contain this GPU's",
    ),
    _Rule(
        "model-missing",
        re.compile(
            # A folder that is not there is taken for a name on the hub, and the complaint is about its form.
            r"OSError: (.*(?:does not appear to have|not a local folder|Can't load|Error no file|Repo id must be).*)"
        ),
        "a model folder is missing or incomplete: {0}",
        "check engine.model_path and speculation.draft_path on the host",
    ),
    _Rule(
        "watchdog",
        re.compile(r".*watchdog timeout \(self\.watchdog_timeout=.*"),
        "the engine hung and its watchdog ended it: {0}",
        "look for a stuck all-reduce (NCCL set, topology) or a request that never ends",
    ),
    _Rule(
        "child-crashed",
        re.compile(r"Subprocess .* crashed with exit code .*"),
        "a process of the engine was killed: {0}",
        "look in the kernel log for an out-of-memory kill (dmesg), and at who sent the signal",
    ),
    _Rule(
        "scheduler-exception",
        re.compile(r"Scheduler hit an exception: .*"),
        "a scheduler raised: {0}",
        "the traceback is in the log",
    ),
)

_EXCEPTION = re.compile(r"^(?:\[.*?\] )?((?:\w+\.)*\w*(?:Error|Exception): .+)$")
_LINE_CHARS = 1000
"""No cause is longer. The engine prints its arguments as one line of some 18 KB, over which the patterns that begin
with `.*` take most of a minute (measured: 36 s in a rollback), while the host restarts the engine again and again."""
_TERMINAL = re.compile(r"\x1b\[[0-9;]*m")


def phase_of(line: str) -> str | None:
    """The load phase that `line` begins, or None."""
    return next((name for name, pattern in PHASES if pattern.search(line)), None)


def cause_of_death(lines: Sequence[str]) -> Cause:
    """Classify why the engine that wrote `lines` ended. The last matching rule in the log wins over an earlier one
    of the same rank; ranks follow the order of the rules, the most specific first.
    """
    cleaned = [_TERMINAL.sub("", line[:_LINE_CHARS]) for line in lines]
    for rule in _RULES:
        for line in reversed(cleaned):
            found = rule.pattern.search(line)
            if found:
                text = found.group(1) if found.groups() and found.group(1) else found.group(0)
                if text.endswith("Traceback (most recent call last):"):
                    text = _last_exception(cleaned) or text
                return Cause(rule.name, rule.message.format(text.strip()[:300]), rule.remedy)
    exception = _last_exception(cleaned)
    if exception is not None:
        return Cause("exception", f"it ended with {exception[:300]}", "the traceback is in the log")
    return Cause("unknown", "it ended without saying why (killed from outside?)", "look at the log and at dmesg")


def _last_exception(cleaned: Sequence[str]) -> str | None:
    return next((found.group(1) for line in reversed(cleaned) if (found := _EXCEPTION.match(line))), None)


def relevant_lines(lines: Sequence[str], count: int = 12) -> list[str]:
    """The last lines worth showing: without progress bars, access lines and blank lines."""
    shown = [
        text
        for line in lines
        if (text := _TERMINAL.sub("", line).rstrip()) and ' - "GET /health' not in text and "it/s]" not in text
    ]
    return shown[-count:]
