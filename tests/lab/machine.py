"""The machine the lab runs on: its packages, its Docker daemon, and how commands are run on it."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

REPOSITORY = Path(__file__).resolve().parents[2]
LAB_FOLDER = REPOSITORY / ".lab"
PREFIX = "ops-lab"
CHECKOUT = hashlib.sha256(str(REPOSITORY).encode()).hexdigest()[:4]
"""Tells the lab of this checkout from that of another one on the same machine."""

DOCKERD_PID_FILE = Path("/run/ops-lab-dockerd.pid")
DOCKERD_LOG = Path("/var/log/ops-lab-dockerd.log")
DOCKERD_START_S = 60

PACKAGE_OF_COMMAND = {
    "dockerd": "docker.io",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mke2fs": "e2fsprogs",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "unshare": "util-linux",
}


class Unavailable(Exception):
    """The lab cannot run on this machine; the message says in one line what is missing."""


class CommandFailed(Exception):
    """A command of the lab ended with an unexpected status; the message has its words and the end of its output."""


def sh(
    argv: Sequence[str | Path],
    *,
    timeout_s: float = 60,
    stdin: bytes | None = None,
    stdin_file: IO[bytes] | None = None,
    check: bool = True,
) -> str:
    """Run a command on this machine and return its stdout.

    Raises: CommandFailed when it exits non-zero (and `check`) or runs past `timeout_s`.
    """
    words = [str(word) for word in argv]
    source = subprocess.PIPE if stdin is not None else stdin_file or subprocess.DEVNULL
    with subprocess.Popen(words, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise CommandFailed(f"{' '.join(words)}: still running after {timeout_s} s") from error
    if check and process.returncode != 0:
        output = (stdout[-1500:] + stderr[-1500:]).decode(errors="replace").strip()
        raise CommandFailed(f"{' '.join(words)}: exit {process.returncode}\n{output}")
    return stdout.decode(errors="replace")


def docker(*words: str | Path, timeout_s: float = 60, stdin: bytes | None = None, check: bool = True) -> str:
    """Run the Docker client and return its stdout. Raises: CommandFailed, as `sh` does."""
    return sh((docker_client(), *words), timeout_s=timeout_s, stdin=stdin, check=check)


def docker_client() -> str:
    """Return Debian's own client rather than a newer one on PATH, which may lack the builder that the daemon has."""
    return "/usr/bin/docker" if os.access("/usr/bin/docker", os.X_OK) else "docker"


def export_image(image: str, folder: Path) -> None:
    """Unpack the file system of an image into a folder. Raises: CommandFailed."""
    container = docker("create", image).strip()
    try:
        exporting = subprocess.Popen((docker_client(), "export", container), stdout=subprocess.PIPE)
        sh(("tar", "-x", "-p", "--numeric-owner", "-C", folder), stdin_file=exporting.stdout, timeout_s=180)
        if exporting.wait() != 0:
            raise CommandFailed(f"docker export of {image}: exit {exporting.returncode}")
    finally:
        docker("rm", container)
    (folder / ".dockerenv").unlink(missing_ok=True)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Let one process at a time, of all on this machine, do what must not be done twice."""
    with Path(f"/run/lock/{PREFIX}-{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def prepare() -> None:
    """Install what is missing and start the Docker daemon. Idempotent.

    Raises: Unavailable when this machine cannot be made to run the lab.
    """
    why = missing_rights()
    if why:
        raise Unavailable(why)
    with locked("prepare"):
        _install_packages()
        _start_docker()


def missing_rights() -> str | None:
    """Say in one line why the lab can never run here, or None."""
    if not shutil.which("apt-get"):
        return "the lab needs a Debian or Ubuntu machine (no apt-get here)"
    if os.geteuid() != 0:
        return "the lab needs root (it starts Docker, network namespaces and mounts)"
    if os.uname().machine != "x86_64":
        return f"the lab's images are built for x86_64, this machine is {os.uname().machine}"
    return None


def _install_packages() -> None:
    packages = sorted(package for command, package in PACKAGE_OF_COMMAND.items() if not shutil.which(command))
    if not Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists():
        packages.append("debian-archive-keyring")
    if not packages:
        return
    environment = ("env", "DEBIAN_FRONTEND=noninteractive")
    try:
        sh((*environment, "apt-get", "update", "-q"), timeout_s=180)
        sh(
            (*environment, "apt-get", "install", "-y", "-q", "--no-install-recommends", *packages),
            timeout_s=600,
        )
    except CommandFailed as error:
        raise Unavailable(f"cannot install {', '.join(packages)}: {str(error).splitlines()[-1]}") from error


def docker_answers() -> bool:
    """Say whether a Docker daemon answers."""
    try:
        return bool(docker("version", "--format", "{{.Server.Version}}", check=False).strip())
    except (CommandFailed, FileNotFoundError):
        return False


def _start_docker() -> None:
    if docker_answers():
        return
    # Through a shell that ends at once, so that the daemon is nobody's child and outlives this process.
    daemon = sh(("sh", "-c", f"setsid dockerd </dev/null >>{DOCKERD_LOG} 2>&1 & echo $!")).strip()
    DOCKERD_PID_FILE.write_text(f"{daemon}\n")
    deadline = time.monotonic() + DOCKERD_START_S
    while not docker_answers():
        if not Path(f"/proc/{daemon}").exists() or time.monotonic() > deadline:
            DOCKERD_PID_FILE.unlink(missing_ok=True)
            raise Unavailable(f"dockerd does not start: {DOCKERD_LOG.read_text().strip().splitlines()[-1]}")
        time.sleep(0.2)


def stop_docker() -> str:
    """Stop the Docker daemon if the lab started it and nobody else has a container in it; say what was done."""
    if not DOCKERD_PID_FILE.exists():
        return "dockerd: not started by the lab, left alone"
    if docker_answers() and docker("ps", "--all", "--quiet").strip():
        return "dockerd: other containers exist, left running"
    pid = int(DOCKERD_PID_FILE.read_text())
    DOCKERD_PID_FILE.unlink()
    if _command_name(pid) != "dockerd":
        return "dockerd: was already gone"
    os.kill(pid, 15)
    deadline = time.monotonic() + 30
    while _command_name(pid) == "dockerd":
        if time.monotonic() > deadline:
            raise CommandFailed(f"dockerd (pid {pid}) does not stop within 30 s of SIGTERM")
        time.sleep(0.1)
    return "dockerd: stopped"


def _command_name(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
