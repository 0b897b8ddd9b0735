"""The stream between a playbook's processes and `ops`: JSON lines in a file that everybody appends to.

A file and not a pipe: a process that restores a host after its parent died can still say so.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VARIABLE = "OPS_EVENTS"
Event = dict[str, Any]


def append(path: str, event: Event) -> None:
    """Write one event; one `write` a line, so that lines of many processes never mix."""
    line = json.dumps({"at": round(time.time(), 3), **event}).encode() + b"\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)


class Tail:
    """Reads what was appended since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def new(self) -> Iterator[Event]:
        """Events that came since the last call, oldest first."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield json.loads(line)
