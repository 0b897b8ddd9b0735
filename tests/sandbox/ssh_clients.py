"""The two SSH clients that reach hosts in practice, host key checked: fabric and OpenSSH."""

import contextlib
import socket
import subprocess

import fabric
import paramiko

from ops.sandbox.host import Sandbox


def connect(
    box: Sandbox, *, user: str = "ops", key: str | None = None, known_hosts: str | None = None
) -> fabric.Connection:
    """An open fabric connection; close it (it is a context manager)."""
    connection = fabric.Connection(
        box.address,
        user=user,
        port=box.ssh_port,
        config=fabric.Config(overrides={"load_ssh_configs": False}, lazy=True),
        connect_timeout=10,
        connect_kwargs={
            "key_filename": key or str(box.layout.client_key),
            "look_for_keys": False,
            "allow_agent": False,
        },
    )
    connection.client.load_host_keys(known_hosts or str(box.layout.known_hosts))
    connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    connection.open()
    # paramiko leaves Nagle's algorithm on: a small request then waits 40 ms for the acknowledgement of the last one.
    connection.transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def run(connection: fabric.Connection, command: str, stdin: bytes | None = None) -> tuple[int, bytes, bytes]:
    """Exit status, stdout and stderr of one command on its own channel of the connection."""
    channel = connection.transport.open_session(timeout=10)
    channel.settimeout(30)
    channel.exec_command(command)
    # A command may end without reading its input, and closes the channel.
    with contextlib.suppress(OSError):
        channel.sendall(stdin or b"")
        channel.shutdown_write()
    out = b"".join(iter(lambda: channel.recv(65536), b""))
    error = b"".join(iter(lambda: channel.recv_stderr(65536), b""))
    status = channel.recv_exit_status()
    channel.close()
    return status, out, error


def openssh(box: Sandbox, *command: str, user: str = "ops", stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [
            *("ssh", "-F", "none", "-p", str(box.ssh_port), "-i", str(box.layout.client_key)),
            *("-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"),
            *("-o", f'UserKnownHostsFile="{box.layout.known_hosts}"', f"{user}@{box.address}", *command),
        ],
        input=stdin,
        capture_output=True,
        timeout=30,
        check=False,
    )
