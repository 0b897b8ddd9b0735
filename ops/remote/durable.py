"""Files and folders that outlive a power cut, and their digests."""

import hashlib
import os
import pwd


def fsync_dir(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path, data, mode=0o644, owner=None):
    """Write `data` (bytes) so that a reader sees the old or the new file, also after a power cut.

    owner: user whose file it becomes (and only then appears); None: ours.
    """
    folder = os.path.dirname(path)
    temporary = os.path.join(folder, f".{os.path.basename(path)}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        os.fchmod(fd, mode)
        if owner is not None:
            os.fchown(fd, *user_ids(owner))
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    except OSError:
        os.close(fd)
        os.unlink(temporary)
        raise
    os.close(fd)
    os.rename(temporary, path)
    fsync_dir(folder)


def user_ids(user):
    entry = pwd.getpwnam(user)
    return entry.pw_uid, entry.pw_gid


def read_text(path):
    """The file's text, or None when there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
