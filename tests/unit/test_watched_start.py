"""How the end of an engine is told while its start is watched. If this breaks, a reboot in the middle of a rollback is
told as a release that cannot start, and the run ends with 'a person must look' though the host went back by itself."""

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ops.remote import guard, store, watch

RUN = "20261130T120000-abcdef"


def emit(event: Any) -> None:
    raise AssertionError("there is no log")


def started(instance: Path) -> dict[str, Any]:
    """Watch the start of an engine that is gone already."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return dict(
        watch.start(
            emit,
            instance_dir=str(instance),
            run=RUN,
            pid=ended.pid,
            starttime=1,
            log=str(instance / "engine.log"),
            log_offset=0,
            address="127.0.0.1",
            port=1,
            ready={"mark": "never", "patience_s": 1.0},
            deadline_at=time.time() + 10,
            supervisor={"kind": "systemd", "instance": "default", "instance_dir": str(instance)},
        )
    )


@pytest.mark.parametrize(
    ("run", "boot", "outcome"),
    [
        (RUN, "this", "died"),
        (RUN, "an earlier one", "undone"),
        ("20261130T120001-fedcba", "this", "undone"),
        (None, "this", "undone"),
    ],
    ids=["of its own", "by a boot", "another run owns the host", "the guard took it"],
)
def test_an_engine_that_the_host_itself_ended_did_not_die(
    tmp_path: Path, run: str | None, boot: str, outcome: str
) -> None:
    store.prepare(lambda event: None, instance_dir=str(tmp_path))
    this = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if run is not None:
        marker = f"RUN={run}\nRELEASE=x-1\nDEADLINE=1\nBOOT={this if boot == 'this' else boot}\n"
        (tmp_path / "guard" / "armed").write_text(marker)
        assert guard.read_marker(str(tmp_path), "armed") is not None
    assert started(tmp_path)["outcome"] == outcome
