"""Addresses of sandboxes: 127.0.77.N, one each, decided by the kernel.

A sandbox owns its address by an abstract unix socket that its SSH server holds: two `up` at the same moment can
never choose the same one, and nothing is left behind when the processes die. A second socket ("hold") keeps the
address while the host is down (`reboot`, `power_cut`). Invariant: an address is taken only by who gets both names.
"""

import contextlib
import errno
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from ops.errors import Refused
from ops.sandbox.layout import DEFAULT_NAME, SSH_PORT

NETWORK = "127.0.77."
DEFAULT_ADDRESS = f"{NETWORK}1"


@dataclass(frozen=True)
class Claim:
    """An owned address with its listening SSH socket; both sockets are handed to the SSH server."""

    address: str
    listener: socket.socket
    owner: socket.socket

    def close(self) -> None:
        self.listener.close()
        self.owner.close()


def claim(name: str, recorded: str | None, *, held: bool = False) -> Claim:
    """Take the address for a sandbox: the default's own, the recorded one if it is free, else the first free.

    held: the caller owns the hold of the recorded address (it comes back after a reboot).
    Raises: Refused when the default's address is taken (names the holder), or when all are.
    """
    if name == DEFAULT_NAME:
        return _claim_or_refuse(DEFAULT_ADDRESS, held)
    if recorded:
        if held:
            return _claim_or_refuse(recorded, held)
        if taken := _try(recorded, held=False):
            return taken
    for last in range(2, 255):
        if taken := _try(f"{NETWORK}{last}", held=False):
            return taken
    raise Refused(
        f"no address is free: {NETWORK}2 to {NETWORK}254 are all taken on port {SSH_PORT}",
        hint="stop sandboxes that nobody needs: ops sandbox down NAME",
    )


def hold(address: str) -> socket.socket:
    """Keep an address for its sandbox while the host is down. Raises: Refused when another hold exists."""
    taken = _name(address, "hold")
    if taken is None:
        raise Refused(
            f"the sandbox at {address} is being rebooted by another command",
            hint="wait until it is back: ops sandbox status",
        )
    return taken


def _claim_or_refuse(address: str, held: bool) -> Claim:
    # Others who look for a free address own the name for a moment before they see the hold.
    for _ in range(100):
        if taken := _try(address, held=held):
            return taken
        if who := listener_of(address, SSH_PORT):
            break
        time.sleep(0.01)
    else:
        who = "another sandbox that is just starting or rebooting"
    raise Refused(
        f"the sandbox's address {address}:{SSH_PORT} is taken by {who}",
        hint="stop that one first (a sandbox of another checkout: run 'ops sandbox down' there), "
        "or use a second sandbox: ops sandbox up NAME",
    )


def _try(address: str, *, held: bool) -> Claim | None:
    owner = _name(address, "owner")
    if owner is None:
        return None
    if not held:
        free = _name(address, "hold")
        if free is None:
            owner.close()
            return None
        free.close()
    listener = listen(address)
    if listener is None:
        owner.close()
        return None
    return Claim(address, listener, owner)


def listen(address: str, port: int = SSH_PORT) -> socket.socket | None:
    """A listening socket, or None when somebody else has it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(256)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return listener


def _name(address: str, kind: str) -> socket.socket | None:
    name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        name.bind(f"\0ops-sandbox-{kind}-{address}")
    except OSError as error:
        name.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return name


def listener_of(address: str, port: int) -> str | None:
    """Who listens there, in words ("pid 123 (command)"); None when nobody does."""
    inode = listening_inode(address, port)
    if inode is None:
        return None
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(str(handle.readlink()) == f"socket:[{inode}]" for handle in (entry / "fd").iterdir()):
                command = (entry / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
                return f"pid {entry.name} ({command.decode(errors='replace')})"
    return "a process of another user"


def listening_inode(address: str, port: int) -> int | None:
    """Socket inode of the listener on exactly address:port or on every address. Source: proc(5), /proc/net/tcp."""
    wanted = {f"{_hex(address)}:{port:04X}", f"00000000:{port:04X}"}
    with Path("/proc/net/tcp").open() as table:
        for line in table:
            fields = line.split()
            if fields[3] == "0A" and fields[1] in wanted:
                return int(fields[9])
    return None


def _hex(address: str) -> str:
    return f"{int.from_bytes(socket.inet_aton(address), 'little'):08X}"
