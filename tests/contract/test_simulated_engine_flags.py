"""The flag tables of the pinned engine versions.

If this fails, a profile with a flag that the pinned engine does not know passes preflight, or a good one is refused.
"""

import json
from pathlib import Path

import pytest
from engine_bench import RECORDINGS

from ops.engine.flags import from_help

TABLES = Path(from_help.__file__).parent
VERSIONS = {"0.5.23": "sglang-0.5.23-cpu", "0.5.17": "sglang-0.5.17-h200"}


def help_text(version: str) -> str:
    return (RECORDINGS / VERSIONS[version] / "help.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_committed_table_is_what_the_recorded_help_gives(version: str, tmp_path: Path) -> None:
    from_help.write(version, help_text(version), tmp_path / "table.json")
    assert (tmp_path / "table.json").read_bytes() == (TABLES / f"sglang-{version}.json").read_bytes()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_flag_of_the_help_is_in_the_table_once(version: str) -> None:
    table = json.loads((TABLES / f"sglang-{version}.json").read_text())["flags"]
    spellings = list(table) + [alias for flag in table.values() for alias in flag["aliases"]]
    usage = help_text(version).partition("\noptions:\n")[0]
    shown = {word.strip("[]|") for word in usage.split() if word.startswith(("[--", "--"))}
    assert len(spellings) == len(set(spellings))
    assert shown <= set(spellings)
    assert len(table) > 450


@pytest.mark.parametrize(
    ("flag", "takes", "kind"),
    [
        ("--tp-size", "one", "int"),
        ("--mem-fraction-static", "one", "float"),
        ("--trust-remote-code", "none", "str"),
        ("--numa-node", "many", "int"),
        ("--speculative-draft-model-path", "one", "str"),
    ],
)
def test_a_flag_says_what_it_takes(flag: str, takes: str, kind: str) -> None:
    table = json.loads((TABLES / "sglang-0.5.23.json").read_text())["flags"]
    assert (table[flag]["takes"], table[flag]["type"]) == (takes, kind)


def test_every_numeric_flag_exists_in_a_pinned_version() -> None:
    known = {
        name for version in VERSIONS for name in json.loads((TABLES / f"sglang-{version}.json").read_text())["flags"]
    }
    assert set(from_help.numeric_types()) <= known
