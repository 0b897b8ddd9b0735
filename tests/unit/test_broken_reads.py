"""A stream that breaks in the middle. If this fails, the user reads "Socket is closed" or a traceback and not why."""

import io
import zipfile
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from ops.errors import ConfigError, ConnectionLost, RemoteFailed
from ops.hosts.ssh import SshHost
from ops.model.inventory import HostSpec
from ops.stacks import wheels


class Channel:
    """A command that ends after its first block, as a paramiko channel shows it."""

    def __init__(self, status: int | None, output: bytes) -> None:
        self._status = status
        self._output = [output, b""]
        self._taken = 0

    def exec_command(self, line: str) -> None: ...

    def sendall(self, data: bytes) -> None:
        self._taken += 1
        if self._taken > 1:
            raise OSError("Socket is closed")

    def shutdown_write(self) -> None: ...

    def exit_status_ready(self) -> bool:
        return self._status is not None

    def recv(self, size: int) -> bytes:
        return self._output.pop(0)

    def recv_exit_status(self) -> int:
        assert self._status is not None
        return self._status


def feed(status: int | None, output: bytes = b"", blocks: int = 3) -> str:
    host = SshHost(HostSpec(name="gpu-a", address="gpu-a"))
    transport = SimpleNamespace(open_session=lambda timeout: Channel(status, output))
    host._connection = SimpleNamespace(transport=transport)
    host._session = SimpleNamespace()  # type: ignore[assignment]
    return host.feed(("docker", "load"), [b"x"] * blocks)


def test_a_command_that_ends_before_it_read_all_is_reported_in_its_own_words() -> None:
    with pytest.raises(RemoteFailed, match=r"exit 1\): permission denied while trying to connect"):
        feed(1, b"permission denied while trying to connect to the Docker daemon\n")


@pytest.mark.parametrize("status", [None, -1, 0], ids=["no-status", "ssh-broke", "success-on-half-of-it"])
def test_everything_else_that_breaks_a_stream_is_a_lost_connection(status: int | None) -> None:
    with pytest.raises(ConnectionLost, match="Socket is closed"):
        feed(status)


def test_a_command_that_reads_all_and_succeeds_is_a_success() -> None:
    assert feed(0, b"Loaded image", blocks=1) == "Loaded image"


def wheel(size: int) -> bytes:
    """A wheel that is larger than what is read ahead."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("kernels/fast.so", b"\x7fELF" + bytes(size))
        file.writestr("kernels-1.0.dist-info/RECORD", "kernels/fast.so,sha256=a,1\n")
    return data.getvalue()


class Index:
    """A web server that gives the end of a file, and then breaks."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def get(self, url: str, *, headers: dict[str, str], timeout: float) -> Any:
        wanted = headers["Range"].removeprefix("bytes=")
        if not wanted.startswith("-"):
            raise requests.exceptions.ChunkedEncodingError("Connection broken: IncompleteRead")
        part = self._content[int(wanted) :]
        total = len(self._content)
        return SimpleNamespace(
            status_code=206,
            content=part,
            headers={"Content-Range": f"bytes {total - len(part)}-{total - 1}/{total}"},
            raise_for_status=lambda: None,
        )


def test_a_network_that_breaks_inside_a_wheel_is_named_and_no_bug_in_ops() -> None:
    session: Any = Index(wheel(3 * wheels.BLOCK_BYTES))
    found = wheels.open_wheel(session, "https://index.example/kernels-1.0-py3-none-any.whl")

    with pytest.raises(ConfigError, match=r"kernels-1.0-py3-none-any.whl cannot be read: Connection broken"):
        wheels.archs_of(found)


def test_a_network_that_is_broken_from_the_start_is_named_in_the_same_words() -> None:
    session: Any = SimpleNamespace(get=lambda *_, **__: (_ for _ in ()).throw(requests.ConnectionError("refused")))

    with pytest.raises(ConfigError, match=r"kernels.whl cannot be read: refused"):
        wheels.open_wheel(session, "https://index.example/kernels.whl")
