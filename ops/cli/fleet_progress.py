"""Progress of a roll on standard error: one live table for all hosts on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

Event = dict[str, Any]
_LINES = {"say": "text", "step": "step"}


class FleetProgress:
    """Takes the events of a roll. Use as a context manager."""

    def __init__(self, hosts: list[str]) -> None:
        self._rows = {host: ["waiting", "", ""] for host in hosts}
        self._begun: dict[str, float] = {}
        console = Console(stderr=True)
        self._live = (
            Live(console=console, get_renderable=self.table, refresh_per_second=4) if console.is_terminal else None
        )

    def __enter__(self) -> Self:
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.__exit__(kind, error, at)

    def __call__(self, event: Event) -> None:
        """Show one event."""
        self._keep(event)
        if self._live is None:
            text = self._line(event)
            if text:
                print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    def table(self) -> Table:
        """The table as it is now."""
        table = Table("host", "state", "step", "detail", "for", box=None, pad_edge=False)
        for host, (state, step, detail) in self._rows.items():
            running = host in self._begun and state == "working"
            seconds = f"{time.monotonic() - self._begun[host]:.0f} s" if running else ""
            table.add_row(host, state, step, detail, seconds)
        return table

    def _keep(self, event: Event) -> None:
        host = event.get("host")
        if host not in self._rows:
            return
        row = self._rows[host]
        kind = event["event"]
        if kind == "working" and event["task"] != "ops_status":
            row[:] = ["working", event["task"].removeprefix("ops_"), ""]
            self._begun[host] = time.monotonic()
        elif kind == "step":
            row[1:] = [event["step"], event["detail"]]
        elif kind in ("say", "phase"):
            row[2] = str(event.get("text") or event.get("phase"))[:80]
        elif kind == "result":
            row[:] = [event["result"]["outcome"], "", str(event["result"]["release"] or "")]
        elif kind == "unreachable":
            row[:] = ["unreachable", "", event["message"][:80]]

    @staticmethod
    def _line(event: Event) -> str:
        kind = event["event"]
        if kind in _LINES:
            return f"{event['host']}: {event[_LINES[kind]]} {event.get('detail', '')}".rstrip()
        if kind == "phase":
            return f"{event['host']}: {event['phase']} after {event['elapsed_s']:.0f} s"
        if kind == "result":
            return f"{event['host']}: {event['result']['outcome']}: {event['result']['message']}"
        if kind == "refused":
            return f"not begun: {event['reason']}"
        if kind == "unreachable":
            return f"{event['host']}: unreachable: {event['message']}"
        return ""


def final_table(rows: list[Any]) -> None:
    """Print which host runs what, on standard error."""
    table = Table("host", "outcome", "serves", "traffic", "message", box=None, pad_edge=False)
    for row in rows:
        admitted = "admitted" if row.details.get("admitted") else "none"
        table.add_row(row.host, row.outcome, row.details.get("serves") or "nothing", admitted, row.message)
    Console(stderr=True, width=None if sys.stderr.isatty() else 200).print(table)
