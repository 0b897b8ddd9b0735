"""Turn a recorded ``python -m sglang.launch_server --help`` into a flag table.

Owns the two ``sglang-<version>.json`` tables beside it: the one place that says which flags a pinned engine
knows. ``--help`` names flags, aliases, choices and how many values a flag takes; it does not say which values are
numbers. Those names are in ``types.json``, read from the annotations of ``srt/arg_groups/fields/*.py`` and
``srt/server_args.py`` of the 0.5.23 wheel, plus the few numeric flags that only 0.5.17 has.

    python -m ops.engine.flags.from_help 0.5.23 tests/recordings/sglang-0.5.23-cpu/help.txt
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAG_LINE = re.compile(r"^  (-[^\n]*)$")
PART = re.compile(r"^(?P<flag>--?[A-Za-z0-9][A-Za-z0-9-]*)(?: (?P<value>.*))?$")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="write the flag table of one engine version")
    parser.add_argument("version", help="engine version, such as 0.5.23")
    parser.add_argument("help_text", type=Path, help="recorded output of --help")
    parser.add_argument("--out", type=Path, default=None, help="default: sglang-VERSION.json beside this file")
    options = parser.parse_args(argv)
    here = Path(__file__).parent
    out = options.out or here / f"sglang-{options.version}.json"
    write(options.version, options.help_text.read_text(encoding="utf-8"), out)
    return 0


def write(version: str, help_text: str, out: Path) -> None:
    """Write the table of ``version`` to ``out``; the same help text always gives the same bytes."""
    table = {"version": version, "flags": flag_table(help_text, numeric_types())}
    out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def numeric_types() -> dict[str, str]:
    """Return flag -> "int" or "float"; every flag that is absent takes text."""
    lists: dict[str, list[str]] = json.loads((Path(__file__).parent / "types.json").read_text(encoding="utf-8"))
    return {flag: kind for kind in ("int", "float") for flag in lists[kind]}


def flag_table(help_text: str, types: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return first spelling -> {aliases, takes, type, choices} for every flag of ``help_text``.

    Raises:
        ValueError: when a line of the options section that starts like a flag cannot be read.
    """
    table: dict[str, dict[str, Any]] = {}
    for line in _option_lines(help_text):
        spellings, value = _split(line)
        name = spellings[0]
        if name in table:
            raise ValueError(f"flag {name} is declared twice")
        choices = _choices(value)
        table[name] = {
            "aliases": spellings[1:],
            "takes": _takes(value),
            "type": types.get(name, "str"),
            "choices": choices,
        }
    return table


def _option_lines(help_text: str) -> Iterator[str]:
    _, found, section = help_text.partition("\noptions:\n")
    if not found:
        raise ValueError("no 'options:' section in the help text")
    for line in section.splitlines():
        match = FLAG_LINE.match(line)
        # argparse puts the description on the same line, two blanks away, when the flag is short
        if match:
            invocation = re.split(r" {2,}", match.group(1))[0]
            if not invocation.startswith("-h,"):
                yield invocation


def _split(invocation: str) -> tuple[list[str], str]:
    spellings: list[str] = []
    value = ""
    for part in re.split(r", (?=--?[A-Za-z])", invocation):
        match = PART.match(part)
        if match is None:
            raise ValueError(f"cannot read the flag line {invocation!r}")
        spellings.append(match["flag"])
        value = match["value"] or value
    spellings.sort(key=lambda flag: (flag.startswith("--no-"), not flag.startswith("--")))
    return spellings, value


def _takes(value: str) -> str:
    if not value:
        return "none"
    if "..." in value:
        return "many"
    return "optional" if value.startswith("[") else "one"


def _choices(value: str) -> list[str] | None:
    match = re.match(r"^\[?\{([^}]*)\}", value)
    return match.group(1).split(",") if match else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
