"""What ranks hold of NCCL's variables, and what NCCL says of them with NCCL_DEBUG=INFO."""

import re
from collections.abc import Iterable
from typing import Any

# A rank's output reaches the log in blocks that end amid a line, so that another rank's line may follow without a
# break: what is read as a value must not hold a space. Source: recording nccl_blocks_ll.log.
SET_BY = re.compile(r"\[(?P<gpu>\d+)\] NCCL INFO (?P<name>NCCL_\w+) set by environment to (?P<value>\S*?)\.?\s*$")


def held(environment: Iterable[bytes]) -> dict[str, str]:
    """The NCCL variables of a process, from its environment as KEY=VALUE."""
    found = (entry.decode().partition("=") for entry in environment if entry.startswith(b"NCCL_"))
    return dict(sorted((name, value) for name, _, value in found))


def said(text: str) -> dict[str, Any]:
    """{"nccl_says": {GPU: {variable: value}}, "nccl_version": version or None} of a log."""
    says: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        if found := SET_BY.search(line):
            says.setdefault(found["gpu"], {})[found["name"]] = found["value"]
    version = re.search(r"NCCL version (\S+)", text)
    return {"nccl_says": says, "nccl_version": version and version[1]}
