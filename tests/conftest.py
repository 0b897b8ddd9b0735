"""Options and fixtures that every tier uses."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
MINUTES_LONG = ("test_fault_matrix.py", "test_vm.py", "test_transaction.py")
"""They begin first, so that no process is left alone with one of them at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ anew; read the diff in review")
    parser.addoption("--write-results", action="store_true", help="write the pages in docs/ that tests make")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: MINUTES_LONG.index(item.path.name) if item.path.name in MINUTES_LONG else 99)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout whose envs/ the shipped profiles are read from."""
    return REPOSITORY
