"""Options and fixtures that every tier uses."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ anew; read the diff in review")
    parser.addoption("--write-results", action="store_true", help="write the pages in docs/ that tests make")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout whose envs/ the shipped profiles are read from."""
    return REPOSITORY
