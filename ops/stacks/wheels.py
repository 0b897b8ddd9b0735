"""Read from a wheel what a lock says of it without downloading all of it: an index serves parts of a file."""

import csv
import io
import tempfile
import zipfile
from pathlib import Path
from typing import IO, cast

import requests

from ops.errors import ConfigError
from ops.remote import stack_probe

TIMEOUT_S = 120.0
BLOCK_BYTES = 1 << 20
"""Read ahead: the end of a wheel (its directory and RECORD) is one request for nearly all wheels."""


class RemoteFile(io.RawIOBase):
    """A file on a web server, read in blocks by range requests. What reads it may raise ConfigError."""

    def __init__(self, session: requests.Session, url: str) -> None:
        self._session = session
        self._url = url
        self._at = 0
        self._start, self._block = self._first()

    def _first(self) -> tuple[int, bytes]:
        answer = self._get(f"bytes=-{BLOCK_BYTES}")
        if answer.status_code == 200:  # the server knows no ranges: this is the whole file
            self._size = len(answer.content)
            return 0, answer.content
        self._size = int(answer.headers["Content-Range"].rpartition("/")[2])
        return self._size - len(answer.content), answer.content

    def _get(self, byte_range: str) -> requests.Response:
        try:
            answer = self._session.get(self._url, headers={"Range": byte_range}, timeout=TIMEOUT_S)
            answer.raise_for_status()
        except requests.RequestException as error:
            raise _unreadable(self._url, error) from error
        return answer

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        parts = []
        while self._at < end:
            if not self._start <= self._at < self._start + len(self._block):
                last = min(self._size, max(end, self._at + BLOCK_BYTES)) - 1
                last = min(last, self._at + 64 * BLOCK_BYTES - 1)
                self._start, self._block = self._at, self._get(f"bytes={self._at}-{last}").content
            part = self._block[self._at - self._start : end - self._start]
            parts.append(part)
            self._at += len(part)
        return b"".join(parts)


def open_wheel(session: requests.Session, url: str) -> zipfile.ZipFile:
    """Open a wheel by its address or its path. Raises: ConfigError when it cannot be read."""
    try:
        if url.startswith(("http://", "https://")):
            return zipfile.ZipFile(cast(IO[bytes], RemoteFile(session, url)))
        return zipfile.ZipFile(url.removeprefix("file://"))
    except (OSError, zipfile.BadZipFile) as error:
        raise _unreadable(url, error) from error


def _unreadable(url: str, error: Exception) -> ConfigError:
    return ConfigError(f"{url.rpartition('/')[2]} cannot be read: {error}", hint="try again")


def record_of(wheel: zipfile.ZipFile) -> str:
    """Return the digest of the files that the wheel installs (`stack_probe.record_digest`)."""
    name = next(name for name in wheel.namelist() if name.count("/") == 1 and name.endswith(".dist-info/RECORD"))
    rows = csv.reader(io.StringIO(wheel.read(name).decode()))
    return str(stack_probe.record_digest(list(rows)))


def archs_of(wheel: zipfile.ZipFile) -> tuple[str, ...]:
    """Return the GPU architectures that the wheel's shared libraries hold machine code for, sorted by number."""
    archs: set[str] = set()
    for info in wheel.infolist():
        if ".so" in Path(info.filename).name and info.file_size:
            with tempfile.NamedTemporaryFile(prefix="ops-kernels-") as file:
                with wheel.open(info) as source:
                    while block := source.read(16 * BLOCK_BYTES):
                        file.write(block)
                file.flush()
                archs.update(stack_probe.gpu_archs(file.name))
    return tuple(sorted(archs, key=lambda arch: int(arch[3:])))
