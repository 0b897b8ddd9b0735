"""The command line: the pinned engine's flag table as an argparse parser, and ``--config FILE``.

Unknown flags, bad types and bad choices end as in the real engine: usage on stderr, exit 2.
"""

import argparse
import json
from pathlib import Path
from typing import Any

CONVERT = {"int": int, "float": float, "str": str}


def flag_table() -> dict[str, dict[str, Any]]:
    """Return the flag table that was installed beside this module."""
    file = Path(__file__).parent / "flags.json"
    table: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["flags"]
    return table


def build_parser(table: dict[str, dict[str, Any]]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sglang serve", argument_default=argparse.SUPPRESS)
    for name, flag in table.items():
        _add(parser, name, flag)
    return parser


def parse(argv: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return destination -> value of everything that was given, and the command line after ``--config`` was merged.

    Raises:
        SystemExit: status 2 with the real engine's words.
        ValueError: for a ``--config`` file that cannot be used.
    """
    table = flag_table()
    parser = build_parser(table)
    if "--config" in argv:
        argv = merge_config(argv, table)
    values = vars(parser.parse_args(argv))
    return values, argv


def merge_config(argv: list[str], table: dict[str, dict[str, Any]]) -> list[str]:
    """Put the options of the config file before those of the command line, which therefore win.

    Source: SGLang 0.5.23 srt/utils/server_args_config_parser.py.
    """
    index = argv.index("--config")
    if argv.count("--config") > 1:
        raise ValueError("Multiple config files specified! Only one allowed.")
    if index == len(argv) - 1:
        raise ValueError("No config file specified after --config flag!")
    file = Path(argv[index + 1])
    if file.suffix.lower() not in (".yaml", ".yml"):
        raise ValueError(f"Config file must be YAML format, got: {file.suffix}")
    if not file.exists():
        raise ValueError(f"Config file not found: {argv[index + 1]}")
    given: list[str] = []
    for key, value in read_flat_yaml(file.read_text(encoding="utf-8")).items():
        given += _config_option(key, value, table)
    return given + argv[:index] + argv[index + 2 :]


def read_flat_yaml(text: str) -> dict[str, Any]:
    """Return the ``key: value`` lines of a config file: YAML's flat subset, or a JSON object.

    Raises:
        ValueError: for anything else (nesting, lists over several lines): the simulation needs no YAML library.
    """
    stripped = text.strip()
    if stripped.startswith("{"):
        loaded: dict[str, Any] = json.loads(stripped)
        return loaded
    result: dict[str, Any] = {}
    for number, raw_line in enumerate(text.splitlines(), 1):
        content = raw_line.strip()
        if not content or content.startswith("#") or content == "---":
            continue
        key, colon, value = content.partition(":")
        if not colon or raw_line[0].isspace():
            raise ValueError(f"Config file must be a dictionary at root level (line {number})")
        result[key.strip().strip("\"'")] = _scalar(value.strip())
    return result


def _scalar(text: str) -> Any:
    if text[:1] == '"':
        return json.loads(text)
    if text[:1] == "'":
        return text[1:-1].replace("''", "'")
    text = text.split(" #", maxsplit=1)[0].strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return None if text in ("", "null", "~") else text


def _config_option(key: str, value: Any, table: dict[str, dict[str, Any]]) -> list[str]:
    flag = "--" + key.replace("_", "-")
    known = next((f for name, f in table.items() if flag == name or flag in f["aliases"]), None)
    if value is None:
        return []
    if known is not None and known["takes"] == "none":
        return [flag] if value is True else []
    if isinstance(value, list):
        return [flag, *map(str, value)]
    return [flag, str(value)]


def _add(parser: argparse.ArgumentParser, name: str, flag: dict[str, Any]) -> None:
    destination = name.lstrip("-").replace("-", "_")
    negations = [alias for alias in flag["aliases"] if alias.startswith("--no-")]
    spellings = [name, *(alias for alias in flag["aliases"] if alias not in negations)]
    required = name == "--model-path"
    if negations:
        parser.add_argument(*spellings, dest=destination, action=argparse.BooleanOptionalAction)
    elif flag["takes"] == "none":
        parser.add_argument(*spellings, dest=destination, action="store_true")
    else:
        convert = CONVERT[flag["type"]]
        choices = [convert(choice) for choice in flag["choices"]] if flag["choices"] else None
        nargs = {"one": None, "many": "*", "optional": "?"}[flag["takes"]]
        parser.add_argument(*spellings, dest=destination, type=convert, choices=choices, nargs=nargs, required=required)
