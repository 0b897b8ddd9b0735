"""The parser that deployment tools call before a start. Source: SGLang 0.5.23 srt/server_args.py, prepare_server_args."""

from typing import Any

from sglang.arguments import parse


def prepare_server_args(argv: list[str]) -> dict[str, Any]:
    """Parse a command line; resolve nothing and open no model. Raises: SystemExit 2 with argparse's words."""
    values, _ = parse(argv)
    return values
