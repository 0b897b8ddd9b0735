"""What a command of the sandbox's SSH server reads and writes: pipes, or a terminal when the client asks for one."""

import asyncio
import errno
import fcntl
import os
import struct
import termios
from collections.abc import Sequence
from dataclasses import dataclass, field

CHUNK_BYTES = 65536


@dataclass(frozen=True)
class Streams:
    """Our ends and the child's (`child_ends`: stdin, stdout, stderr; closed here once it runs).

    prefix: what the command line starts with, so that the child gets its controlling terminal.
    terminal: our descriptor of the terminal; None with pipes.
    """

    child_ends: tuple[int, int, int]
    stdin: asyncio.StreamWriter
    outputs: tuple[tuple[asyncio.StreamReader, asyncio.ReadTransport], ...]
    prefix: Sequence[str] = field(default=())
    terminal: int | None = None

    def close_child_ends(self) -> None:
        for handle in set(self.child_ends):
            os.close(handle)

    def end_input(self) -> None:
        if self.terminal is None:
            self.stdin.close()
        else:
            self.stdin.write(b"\x04")

    def resize(self, columns: int, rows: int, width: int, height: int) -> None:
        if self.terminal is not None:
            fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, width, height))

    def close(self) -> None:
        self.stdin.close()
        for _, transport in self.outputs:
            transport.close()


async def pipes() -> Streams:
    """Three pipes. asyncio's own is a socket pair for stdin (Python 3.11), on which /dev/stdin cannot be opened."""
    stdin_child, stdin = os.pipe()
    stdout, stdout_child = os.pipe()
    stderr, stderr_child = os.pipe()
    return Streams(
        child_ends=(stdin_child, stdout_child, stderr_child),
        stdin=await _writer(stdin),
        outputs=(await _reader(stdout), await _reader(stderr)),
    )


async def terminal() -> Streams:
    """A pseudo-terminal that becomes the command's controlling terminal."""
    ours, child = os.openpty()
    return Streams(
        child_ends=(child, child, child),
        stdin=await _writer(os.dup(ours)),
        outputs=(await _reader(ours),),
        prefix=("/usr/bin/setsid", "--ctty"),
        terminal=ours,
    )


async def read(reader: asyncio.StreamReader) -> bytes:
    """The next bytes; empty at the end. A terminal ends with EIO when its last process is gone."""
    try:
        return await reader.read(CHUNK_BYTES)
    except OSError as error:
        if error.errno == errno.EIO:
            return b""
        raise


async def _writer(handle: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(handle, "wb", buffering=0)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def _reader(handle: int) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    reader = asyncio.StreamReader(limit=4 * CHUNK_BYTES)
    pipe = os.fdopen(handle, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    return reader, transport
