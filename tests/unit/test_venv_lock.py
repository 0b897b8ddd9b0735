"""Who writes into an environment. If this breaks, two pips write into one and leave a mixture that nobody made."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ops.remote import venv
from ops.remote.refusal import VerbError

AGENT = """
import sys, time
from ops.remote import venv

folder = sys.argv[1]
pip = "import os, sys, time; open(sys.argv[1] + '/pip', 'w').write(str(os.getpid())); time.sleep(60)"
with venv._alone(print, folder, time.monotonic()) as held:
    venv._run([sys.executable, "-c", pip, folder], held)
"""


@pytest.fixture
def orphan(tmp_path: Path) -> int:
    """A pip that goes on although its agent is gone, as when SSH breaks."""
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(tmp_path)])
    deadline = time.monotonic() + 20
    while not ((tmp_path / "pip").exists() and (tmp_path / "pip").read_text()):
        assert time.monotonic() < deadline, "pip did not start"
        time.sleep(0.01)
    agent.kill()
    agent.wait()
    return int((tmp_path / "pip").read_text())


def test_a_repeated_call_waits_for_the_pip_that_the_first_one_left(
    tmp_path: Path, orphan: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []

    def no_longer(_: float) -> None:  # pip ends while we wait
        os.kill(orphan, signal.SIGKILL)
        while Path(f"/proc/{orphan}/exe").exists():
            pass

    monkeypatch.setattr(venv.time, "sleep", no_longer)

    with venv._alone(said.append, str(tmp_path), time.monotonic() + 20):
        pass

    assert [event["say"] for event in said] == [f"waiting: another run is installing into {tmp_path}"]


def test_it_does_not_wait_for_ever(tmp_path: Path, orphan: int) -> None:
    try:
        with (
            pytest.raises(VerbError, match="still installing"),
            venv._alone(lambda _: None, str(tmp_path), time.monotonic()),
        ):
            pass
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_what_whom_we_waited_for_completed_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def complete(_: int) -> bool:
        (tmp_path / venv.COMPLETE).write_text("{}")
        return True

    monkeypatch.setattr(venv, "_locked", complete)
    lock = '{"packages": []}'
    found = venv.install(
        lambda _: None,
        folder=str(tmp_path),
        lock=lock,
        lock_sha256=venv.hashlib.sha256(lock.encode()).hexdigest(),
        python="3.11",
        patches=[],
        timeout_s=10.0,
    )

    assert found["changed"] is False
