"""Fixtures of the tests against the real engine on a CPU: the engine, built once, and hosts that run it.

A machine that cannot run it skips them with one line; with OPS_REQUIRE_ENGINE=1 (`make test-engine-cpu` and
`make test-engine-gpu`) that is a failure.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import real_host
from cpu_report import Report
from real_host import RealHost

CACHE = real_host.REPOSITORY / ".cache" / "engine-cpu"


@pytest.fixture(scope="session")
def unavailable() -> Callable[[str], NoReturn]:
    """End the test: this machine cannot run the engine."""

    def end(why: str) -> NoReturn:
        if os.environ.get("OPS_REQUIRE_ENGINE") == "1":
            pytest.fail(f"OPS_REQUIRE_ENGINE=1, but the engine is unavailable: {why}", pytrace=False)
        pytest.skip(f"engine unavailable: {why}")

    return end


@pytest.fixture(scope="session")
def engine_python(unavailable: Callable[[str], NoReturn]) -> Path:
    """The Python of the real engine; the first time it is built, which takes minutes."""
    if sys.version_info[:2] != (3, 11) and not (CACHE / ".built").exists():
        unavailable("building the CPU engine needs Python 3.11: PYTHON=python3.11 tests/engine/cpu/setup.sh")
    done = subprocess.run(
        [real_host.HERE / "cpu" / "setup.sh", CACHE], capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return CACHE / "venv" / "bin" / "python"


@pytest.fixture(scope="module")
def host(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealHost]:
    """The host of the story: releases come and go on it; each test says what must serve when it begins."""
    yield from _host(tmp_path_factory.mktemp("engine"), "real", engine_python)


@pytest.fixture(scope="module")
def bare_host(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealHost]:
    """A host on which nothing was ever good, so that a failed deploy ends with nothing running."""
    yield from _host(tmp_path_factory.mktemp("bare"), "bare", engine_python)


def _host(folder: Path, name: str, engine_python: Path) -> Iterator[RealHost]:
    made = real_host.up(folder, name, engine_python)
    try:
        yield made
    finally:
        made.box.down()
        assert made.engine_processes() == {}


@pytest.fixture(scope="module")
def report(host: RealHost, bare_host: RealHost, engine_python: Path) -> Iterator[Report]:
    """What this run found; written to docs/results when every part of it was found."""
    made = Report()
    yield made
    made.write(engine_python, [*host.commands, *bare_host.commands])
