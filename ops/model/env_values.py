"""What a line of `engine.env` may hold, so that launch.sh, systemd and docker read the same value from it.

launch.sh and `docker --env-file` take everything after the first `=` literally; systemd's `EnvironmentFile=` strips
white space at both ends, reads quotes at the start and treats a backslash as an escape. What the three would read
differently is refused instead of quoted: a quoted form for one of them is wrong for the other two.
Source: systemd src/basic/env-file.c (parse_env_file_internal); docker/cli opts/file.go.
"""

import re
from collections.abc import Iterator, Mapping

from ops.model.base import Path, Problem

CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]|[\ud800-\udfff]")
RESERVED = {"SPT_NOENV": "ops always sets it to 1 (ranks blank /proc/<pid>/environ without it)"}
SHELL_OWNED = frozenset(
    (
        *("_", "IFS", "PWD", "OLDPWD", "PPID", "OPTIND", "OPTARG", "UID", "EUID", "LINENO", "RANDOM", "SECONDS"),
        *("SRANDOM", "SHLVL", "SHELLOPTS", "ENV", "GROUPS", "DIRSTACK", "FUNCNAME", "PS1", "PS2", "PS4", "HISTCMD"),
        *("POSIXLY_CORRECT", "EPOCHSECONDS", "EPOCHREALTIME", "COMP_WORDBREAKS"),
    )
)
"""Variables that dash or bash set, refuse or act on themselves; launch.sh could not hand them on literally."""


def value_problem(value: str) -> str | None:
    """Say why `value` cannot be written to engine.env, or None when every reader agrees on it."""
    if CONTROL.search(value):
        return "holds a newline or another control character; engine.env has one line a variable"
    if value != value.strip():
        return "starts or ends with white space, which systemd would strip and docker would keep"
    if "\\" in value:
        return "holds a backslash, which systemd reads as an escape and docker literally"
    if value[:1] in {'"', "'"}:
        return "starts with a quote, which systemd would strip and docker would keep"
    return None


def env_problems(env: Mapping[str, str], at: Path) -> Iterator[Problem]:
    """Judge names and values of an environment map."""
    for name, value in env.items():
        if name in RESERVED:
            yield Problem((*at, name), f"reserved: {RESERVED[name]}")
        elif name.upper().startswith("OPS_"):
            yield Problem((*at, name), "names starting with OPS_ belong to launch.sh")
        elif name in SHELL_OWNED or name.startswith("BASH"):
            yield Problem((*at, name), "the shell owns this variable; it cannot be handed to the engine")
        elif name.startswith("SGLANG_SIMULATE_ACC"):
            # Source: SGLang 0.5.23 srt/environ.py: replaces real acceptance, the output becomes meaningless.
            yield Problem((*at, name), "fakes the acceptance of draft tokens: never in a profile that serves")
        reason = value_problem(value)
        if reason:
            yield Problem((*at, name), f"the value {reason}")
