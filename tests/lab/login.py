"""Reaching a lab host over SSH, the way an operator does, with the OpenSSH client."""

import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .machine import CommandFailed

Inventory = dict[str, str | int | float | bool]
"""Ansible variables of one host."""


@dataclass(frozen=True)
class Login:
    """An address to log in to, the key to do it with, and the file by which the host is known."""

    address: str
    port: int
    user: str
    key: Path
    known_hosts: Path

    def options(self) -> tuple[str, ...]:
        """Return the options that make ssh, scp and sftp independent of the machine's own SSH configuration."""
        return (
            *("-F", "/dev/null", "-i", str(self.key), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"),
            *("-o", f"UserKnownHostsFile={self.known_hosts}", "-o", "GlobalKnownHostsFile=/dev/null"),
            *("-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=20", "-o", "LogLevel=ERROR"),
            # A host that loses its power does not say goodbye; an emulated processor under load is silent for seconds.
            *("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"),
        )

    def argv(self, command: Sequence[str]) -> list[str]:
        """Return the ssh command line that runs `command` on the host, each word quoted for its login shell."""
        remote = shlex.join(command)
        return ["ssh", *self.options(), "-p", str(self.port), f"{self.user}@{self.address}", remote]

    def run(
        self, *command: str, timeout_s: float = 30, stdin: bytes = b"", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host over a connection of its own.

        Raises: CommandFailed when it exits non-zero (and `check`) or runs past `timeout_s`.
        """
        where = f"{self.user}@{self.address}:{self.port}: {shlex.join(command)}"
        try:
            done = subprocess.run(self.argv(command), input=stdin, capture_output=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as error:
            raise CommandFailed(f"{where}: still running after {timeout_s} s") from error
        stdout, stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if check and done.returncode != 0:
            raise CommandFailed(f"{where}: exit {done.returncode}\n{stdout[-1500:]}{stderr[-1500:]}")
        return subprocess.CompletedProcess(done.args, done.returncode, stdout, stderr)

    def wait(self, *, deadline_s: float, poll_s: float = 0.05) -> float:
        """Wait until a command runs on the host and return the seconds it took.

        Raises: CommandFailed with the last refusal when `deadline_s` passes.
        """
        started = time.monotonic()
        while True:
            left_s = started + deadline_s - time.monotonic()
            try:
                self.run("true", timeout_s=max(left_s, 0.1))
                return time.monotonic() - started
            except CommandFailed as error:
                if time.monotonic() - started > deadline_s:
                    raise CommandFailed(f"no SSH login within {deadline_s} s; last: {error}") from error
            time.sleep(poll_s)

    def inventory(self, *, time_scale: float) -> Inventory:
        """Return the host's variables for an Ansible YAML inventory, as `ops` and `ansible-playbook` read them."""
        strict = "-o UserKnownHostsFile={{ ops_known_hosts }} -o GlobalKnownHostsFile=/dev/null"
        return {
            "ansible_host": self.address,
            "ansible_port": self.port,
            "ansible_user": self.user,
            "ansible_become": self.user != "root",
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_ssh_common_args": f"{strict} -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ops_known_hosts": str(self.known_hosts),
            "ops_root": "/opt/ops",
            "ops_engine_python": "/opt/sglang/venv/bin/python",
            "ops_time_scale": time_scale,
        }
