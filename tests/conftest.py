"""Options and fixtures that every tier uses."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
FAST_FIRST = ("unit", "contract", "sandbox", "engine", "lab")
MINUTES_LONG = ("test_fault_matrix.py", "test_vm.py", "test_transaction.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ anew; read the diff in review")
    parser.addoption("--write-results", action="store_true", help="write the pages in docs/ that tests make")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The fast tiers first; with several processes the longest first, so that none is left alone with it at the end."""
    items.sort(key=_longest_first if hasattr(config, "workerinput") else _tier)


def _longest_first(item: pytest.Item) -> tuple[int, int]:
    return MINUTES_LONG.index(item.path.name) if item.path.name in MINUTES_LONG else len(MINUTES_LONG), -_tier(item)


def _tier(item: pytest.Item) -> int:
    return FAST_FIRST.index(item.path.relative_to(REPOSITORY / "tests").parts[0])


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout whose envs/ the shipped profiles are read from."""
    return REPOSITORY
