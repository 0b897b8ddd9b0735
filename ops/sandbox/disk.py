"""The sandbox's disk: a root folder of limited size where this user may mount, and a ballast that fills it."""

import errno
import os
import subprocess

from ops.errors import HostError, Refused
from ops.sandbox.layout import Layout


def mount(layout: Layout, old_mib: int, new_mib: int) -> None:
    """Make the root folder a file system of `new_mib` MiB (0: a plain folder).

    Raises: Refused when this user may not mount, or when the root folder has content already.
    """
    mounted = os.path.ismount(layout.root)
    layout.root.mkdir(parents=True, exist_ok=True)
    if new_mib == old_mib and mounted == bool(new_mib):
        return
    if mounted and new_mib:
        _run(["mount", "-o", f"remount,size={new_mib}m", str(layout.root)], f"resize {layout.root}")
    elif mounted or (new_mib and any(layout.root.iterdir())):
        raise Refused(
            f"the size of {layout.root} can only be chosen for a sandbox without releases",
            hint="start over: ops sandbox down, then ops sandbox up --root-size-mib N",
        )
    elif new_mib:
        _run(
            ["mount", "-t", "tmpfs", "-o", f"size={new_mib}m,mode=755", "ops-sandbox", str(layout.root)],
            f"mount a file system of {new_mib} MiB on {layout.root}",
        )


def unmount(layout: Layout) -> None:
    if os.path.ismount(layout.root):
        # Lazily: the sandbox's own processes are dead, and a person's shell in the folder must not keep it.
        _run(["umount", "-l", str(layout.root)], f"unmount {layout.root}")


def _run(argv: list[str], what: str) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Refused(f"cannot {what}: {error}", hint="a size-limited root folder needs mount(8) and root") from error
    if done.returncode:
        raise Refused(
            f"cannot {what}: {done.stderr.strip()}",
            hint="a size-limited root folder needs the right to mount (root); without it use --root-size-mib 0",
        )


def fill(layout: Layout) -> int:
    """Fill the root folder's file system to the last block; returns the ballast's bytes.

    Raises: Refused when the root folder is no size-limited file system.
    """
    if not os.path.ismount(layout.root):
        raise Refused(
            f"disk-full needs a root folder of limited size; {layout.root} is a plain folder of this machine's disk",
            hint="as a user that may mount: ops sandbox down, then ops sandbox up --root-size-mib 64",
        )
    with layout.ballast.open("ab", buffering=0) as ballast:
        for chunk in (1 << 20, 1 << 16, 4096, 1):
            while _append(ballast.fileno(), b"\0" * chunk):
                pass
    free = os.statvfs(layout.root).f_bavail
    if free:
        raise HostError(f"{layout.root} still has {free} free blocks although a write failed")
    return layout.ballast.stat().st_size


def _append(handle: int, data: bytes) -> bool:
    try:
        os.write(handle, data)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return False
        raise
    return True


def free_up(layout: Layout) -> None:
    layout.ballast.unlink(missing_ok=True)


def filled(layout: Layout) -> bool:
    return layout.ballast.exists()
