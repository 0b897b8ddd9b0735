"""The agent as a host runs it: the bundle piped to a bare Python, answers read by the client's half. If this breaks, a
refusal reaches the operator without its code, or one thread's broken connection takes another's fresh one."""

import ast
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.errors import RemoteFailed
from ops.hosts.session import AgentError, Session
from ops.hosts.ssh import SshHost
from ops.model.inventory import HostSpec
from ops.remote import loader, refusal


class Pipe:
    """An agent on this machine, with the part of a paramiko channel that a session uses."""

    def __init__(self) -> None:
        argv = [sys.executable, "-IS", "-c", f"print('OPS-AGENT', flush=True); {loader.BOOT}"]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def sendall(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def recv(self, size: int) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.read(size)

    def recv_stderr(self, size: int) -> bytes:
        return b""

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Nearby(SshHost):
    """A host whose connections are agents on this machine."""

    def __init__(self) -> None:
        super().__init__(HostSpec(name="gpu-a", address="gpu-a"), reconnect_s=20.0)
        self.pipes: list[Pipe] = []

    def _open(self) -> Session:
        if self._session is None:
            self.pipes.append(Pipe())
            self._session = Session(self.pipes[-1])
            self._session.hello(timeout_s=20.0)
        return self._session


@pytest.fixture
def host() -> Iterator[Nearby]:
    found = Nearby()
    yield found
    found.close()
    for pipe in found.pipes:
        pipe.close()
        for stream in (pipe.process.stdin, pipe.process.stdout):
            assert stream is not None
            stream.close()


def test_a_refusal_reaches_the_client_with_its_code_and_what_belongs_to_it(host: Nearby, tmp_path: Path) -> None:
    with pytest.raises(RemoteFailed, match="no longer owns the host") as refused:
        host.call("lock.heartbeat", instance_dir=str(tmp_path), run="r1")
    assert (refused.value.code, refused.value.kind) == ("not-owner", "VerbError")
    cause = refused.value.__cause__
    assert isinstance(cause, AgentError) and cause.data == {"holder": None}


def test_what_the_operating_system_refuses_has_its_name_for_a_code(host: Nearby, tmp_path: Path) -> None:
    (tmp_path / "releases").write_text("in the way")
    with pytest.raises(RemoteFailed) as refused:
        host.call("store.prepare", instance_dir=str(tmp_path))
    assert refused.value.code == "EEXIST"


def test_a_bug_of_the_agent_is_no_refusal(host: Nearby) -> None:
    with pytest.raises(RemoteFailed) as failed:
        host.call("store.prepare", no_such_argument=1)
    assert failed.value.code == "unexpected"


def test_every_refusal_has_a_code_that_is_written_down_and_every_code_is_used(repository: Path) -> None:
    given = set()
    for file in sorted((repository / "ops" / "remote").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "VerbError":
                codes = [word.value for word in node.keywords if word.arg == "code"]
                assert len(codes) == 1, f"{file.name}:{node.lineno} refuses without a code"
                if isinstance(codes[0], ast.Constant):
                    given.add(codes[0].value)
    assert given == set(refusal.CODES)
    assert set(refusal.CODES) > refusal.HOST_TAKEN


def test_a_thread_that_notices_a_break_late_leaves_anothers_fresh_session_alone(host: Nearby, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("one\n")
    following, go_on = threading.Event(), threading.Event()

    class Enough(Exception):
        """The log was followed again."""

    def follow(event: Any) -> None:
        if following.is_set():
            raise Enough
        following.set()
        go_on.wait(20)

    def late() -> None:
        with pytest.raises(Enough):
            host.call("watch.log", log=str(log), lines=1, follow=True, on_event=follow)

    thread = threading.Thread(target=late)
    thread.start()
    assert following.wait(20)
    host.pipes[0].close()
    host.call("store.remembered", instance_dir=str(tmp_path))
    go_on.set()
    thread.join(20)
    assert len(host.pipes) == 2, "the fresh session was closed, and a third one opened"
