"""Room for the way back: a preallocated file that going back frees, so that a full disk cannot forbid it.

Steps that go forward never use the reserve; they fail, and then the run goes back in the room that is freed here.
"""

import errno
import os

from ops.remote import durable

BYTES = 4 << 20
"""Enough for markers, links, the journal and the log of one start; measured: a start writes some 20 KiB."""


def path_of(instance_dir):
    return os.path.join(instance_dir, "guard", "reserve")


def keep(instance_dir):
    """Allocate the reserve. Raises: OSError when the disk has no room for it."""
    path = path_of(instance_dir)
    if os.path.exists(path) and os.path.getsize(path) == BYTES:
        return
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(fd, 0, BYTES)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def free(instance_dir):
    """Give the reserve up; returns False when there was none."""
    try:
        os.unlink(path_of(instance_dir))
    except FileNotFoundError:
        return False
    return True


def spend(instance_dir, write):
    """Call `write()`; when the disk is full, free the reserve and call it again."""
    try:
        return write()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not free(instance_dir):
            raise
        return write()


def write_urgent(instance_dir, path, data):
    """Write a small file that the way back needs."""
    spend(instance_dir, lambda: durable.write_atomic(path, data))
