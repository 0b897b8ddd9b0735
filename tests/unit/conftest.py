"""A throw-away project: a copy of the shipped envs/ that a test may break."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def shipped_project(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """The shipped envs/ to read from, without the `.env` that a checkout may have."""
    folder = tmp_path_factory.mktemp("shipped")
    shutil.copytree(repository / "envs", folder / "envs")
    return folder


@pytest.fixture
def project(tmp_path: Path, repository: Path) -> Path:
    folder = tmp_path / "project"
    shutil.copytree(repository / "envs", folder / "envs")
    return folder


@pytest.fixture
def write(project: Path) -> Write:
    """Write one file under the project's envs/."""

    def _write(name: str, text: str) -> Path:
        file = project / "envs" / name
        file.write_text(text, encoding="utf-8")
        return file

    return _write
