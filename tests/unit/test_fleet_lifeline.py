"""One host's work in its own process: if this fails, Ctrl-C or a killed playbook leaves a host half changed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ops.fleet.events import Tail, append
from ops.fleet.lifeline import Ended, alone

PARENT = """
import json, os, sys, time
from pathlib import Path
from ops.fleet.lifeline import alone

def work(emit):
    folder = Path(sys.argv[1])
    (folder / "child").write_text(str(os.getpid()))
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.3)
        (folder / "restored").write_text("yes")
        return {"restored": True}
    return {"restored": False}

print(json.dumps(alone(work, print)))
"""


def until(path: Path) -> str:
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path.name} did not come"
        time.sleep(0.01)
    return path.read_text()


def start(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE, text=True)


def test_the_result_and_what_was_said_arrive() -> None:
    said = []

    def work(emit: object) -> dict[str, int]:
        emit({"event": "say", "text": "x" * 200_000})  # type: ignore[operator]  # more than a pipe holds
        return {"pid": os.getpid()}

    found = alone(work, said.append)

    assert found["pid"] != os.getpid()
    assert [len(event["text"]) for event in said] == [200_000]


def test_a_bug_comes_back_with_its_traceback() -> None:
    def work(emit: object) -> dict[str, int]:
        raise KeyError("the-bug")

    with pytest.raises(Ended, match="the-bug"):
        alone(work, print)


def test_a_killed_child_is_named_by_its_signal() -> None:
    def work(emit: object) -> dict[str, int]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    with pytest.raises(Ended) as caught:
        alone(work, print)
    assert caught.value.signal == signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_parent_waits_until_the_child_has_restored(tmp_path: Path, number: signal.Signals) -> None:
    parent = start(tmp_path)
    until(tmp_path / "child")

    parent.send_signal(number)
    parent.send_signal(number)  # Ansible sends several
    out, _ = parent.communicate(timeout=20)

    assert json.loads(out) == {"restored": True}


def test_a_child_restores_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = start(tmp_path)
    until(tmp_path / "child")

    parent.kill()
    parent.communicate(timeout=20)

    assert until(tmp_path / "restored") == "yes"


def test_lines_of_many_writers_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    writers = []
    for writer in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                for number in range(200):
                    append(str(path), {"event": "say", "writer": writer, "number": number, "text": "y" * 3000})
            finally:
                os._exit(0)
        writers.append(pid)
    tail, found = Tail(path), []
    for pid in writers:
        os.waitpid(pid, 0)
        found += list(tail.new())

    found += list(tail.new())
    for writer in range(4):
        assert [e["number"] for e in found if e["writer"] == writer] == list(range(200))
