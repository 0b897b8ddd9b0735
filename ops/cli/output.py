"""One document on stdout, progress on stderr."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ops.model.result import HostResult, document


def print_json(data: Mapping[str, Any]) -> None:
    print(json.dumps(data, indent=2, ensure_ascii=False))


def finish(command: str, results: Sequence[HostResult], as_json: bool) -> int:
    """Print a command's results and return its exit code."""
    found = document(command, list(results))
    if as_json:
        print_json(found)
    else:
        for result in results:
            print_result(result)
    return int(found["exit_code"])


def print_result(result: HostResult) -> None:
    """One host's outcome: what happened, and what to do next when something is wrong."""
    what = f"{result.host}: {result.outcome}"
    if result.profile:
        what += f" {result.profile}"
    if result.simulated:
        what += f" (SIMULATED {result.simulated})"
    stream = sys.stderr if result.exit_code else sys.stdout
    print(f"{what}: {result.message}" if result.message else what, file=stream)
    if result.hint:
        print(f"hint: {result.hint}", file=stream)


class Progress:
    """Plain lines when stderr is no terminal, one live line for a load's phases when it is."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._open = False
        self._begun = time.monotonic()

    def say(self, host: str, text: str) -> None:
        self._line(f"{host}: {text}")

    def step(self, host: str, kind: str, detail: str) -> None:
        self._line(f"{host}: {kind} {detail}".rstrip())

    def phase(self, host: str, name: str, elapsed_s: float, expected_s: float | None) -> None:
        eta = f", about {max(0.0, expected_s - elapsed_s):.0f} s left" if expected_s else ""
        text = f"{host}: loading: {name} ({elapsed_s:.0f} s{eta})"
        if self._live:
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
            self._open = True
        else:
            self._line(text)

    def _line(self, text: str) -> None:
        if self._open:
            print(file=sys.stderr)
            self._open = False
        stamp = time.strftime("%H:%M:%S")
        print(f"{stamp} {text}", file=sys.stderr, flush=True)
