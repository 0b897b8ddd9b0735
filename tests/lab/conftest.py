"""Fixtures that give tests real hosts. Without root, Debian or Docker they skip with one line saying what is missing.

With OPS_REQUIRE_LAB=1 in the environment (continuous integration) that is a failure instead.
"""

import itertools
import os
from collections.abc import Callable, Generator, Iterator
from typing import Protocol

import pytest

from ops.sandbox.engine.install import Simulation

from .hosts import Host, Lab, Settings
from .machine import CommandFailed, Unavailable, prepare
from .vm import Vm

MakeHost = Callable[..., Host]


class Journaled(Protocol):
    """Anything whose own log explains a failed test."""

    name: str

    def journal(self) -> str: ...


JOURNALED = pytest.StashKey[list[Journaled]]()


@pytest.fixture(scope="session")
def lab() -> Lab:
    """The lab of this checkout, on a machine prepared for it."""
    try:
        prepare()
    except Unavailable as why:
        if os.environ.get("OPS_REQUIRE_LAB") == "1":
            pytest.fail(f"OPS_REQUIRE_LAB=1, but the lab is unavailable: {why}", pytrace=False)
        pytest.skip(f"lab unavailable: {why}")
    return Lab()


@pytest.fixture
def make_host(lab: Lab, request: pytest.FixtureRequest) -> Iterator[MakeHost]:
    """Make fresh hosts for one test: `make_host("systemd", shm_mib=64)`; they are removed after it."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    numbers = itertools.count(1)
    made: list[Host] = []
    request.node.stash[JOURNALED] = made

    def make(kind: str, **settings: Simulation | int | str) -> Host:
        name = f"{kind}-{worker}-{os.getpid()}-{next(numbers)}"
        made.append(lab.host(name, kind, Settings(**settings)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for host in made:
        lab.remove(host)


@pytest.fixture
def systemd_host(make_host: MakeHost) -> Host:
    """A fresh Debian server with systemd."""
    return make_host("systemd")


@pytest.fixture
def supervisord_host(make_host: MakeHost) -> Host:
    """A fresh container without systemd."""
    return make_host("supervisord")


@pytest.fixture
def docker_host(make_host: MakeHost) -> Host:
    """A fresh Debian server with systemd and a Docker daemon."""
    return make_host("docker")


@pytest.fixture(scope="session")
def booted_vm(lab: Lab) -> Iterator[Vm]:
    """One virtual machine for the whole session: booting it takes half a minute."""
    with Vm(f"vm-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-{os.getpid()}") as vm:
        yield vm


@pytest.fixture
def vm(booted_vm: Vm, request: pytest.FixtureRequest) -> Vm:
    """The virtual machine; what a test leaves on it, the next one finds."""
    request.node.stash[JOURNALED] = [booted_vm]
    return booted_vm


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Print the hosts' own logs below the traceback of a failed test."""
    report = yield
    if report.failed:
        for host in item.stash.get(JOURNALED, []):
            try:
                text = host.journal()
            except CommandFailed as error:
                text = f"cannot be read: {error}"
            report.sections.append((f"journal of {host.name}", text))
    return report
