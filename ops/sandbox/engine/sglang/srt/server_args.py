"""The parser that deployment tools call before a start.  Source: SGLang 0.5.23 srt/server_args.py."""

from typing import Any

# The package is found as `sglang` in an environment: it cannot name itself by its place in this project.
from ..arguments import parse  # noqa: TID252


def prepare_server_args(argv: list[str]) -> dict[str, Any]:
    """Parse a command line; resolve nothing and open no model. Raises: SystemExit 2 with argparse's words."""
    values, _ = parse(argv)
    return values
