"""Fixtures of the sandbox tests: real hosts under the test's own folder, always brought down."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.sandbox.host import Sandbox
from ops.sandbox.layout import Layout

Factory = Callable[..., Sandbox]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty project: `envs/` is what makes a folder one."""
    (tmp_path / "envs").mkdir()
    return tmp_path


@pytest.fixture
def sandbox(project: Path) -> Iterator[Factory]:
    """Make sandboxes: `sandbox(time_scale=10, noise="off", …)`; names count up, addresses come from the kernel."""
    made: list[Sandbox] = []

    def make(name: str | None = None, **settings: Any) -> Sandbox:
        made.append(Sandbox.up(name or f"box-{len(made) + 1}", project=project, **settings))
        return made[-1]

    yield make
    boxes = [*made, *(Sandbox(Layout(folder)) for folder in (project / ".sandbox").glob("*"))]
    for box in boxes:
        if box.layout.folder.exists():
            box.down()
    assert [process.title for box in boxes for process in box.processes()] == []
