"""The images of lab hosts.

Invariant: an image's tag is the hash of all that it is built from, so a stale one is never used.
The first layer comes from `mmdebstrap`, the rest from the Dockerfiles in `image/`: no registry is asked for anything.
"""

import hashlib
import io
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .machine import PREFIX, CommandFailed, docker, docker_client, locked, sh

DEBIAN = "bookworm"
"""Its Python is 3.11, the oldest the project supports."""

PACKAGES = (
    "openssh-server,python3,python3-venv,python3-apt,iproute2,curl,ca-certificates,sudo,procps,cron,kmod,fish,tcsh"
)
DPKG_OPTIONS = tuple(f"path-exclude=/usr/share/{folder}/*" for folder in ("man", "doc", "locale"))
IMAGE_FOLDER = Path(__file__).parent / "image"
CA_FOLDER = Path("/usr/local/share/ca-certificates")


@dataclass(frozen=True)
class Recipe:
    """One image: the folder of its Dockerfile under `image/`, and the image it starts from (None: Debian itself)."""

    name: str
    parent: str | None


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("base", None),
        Recipe("systemd", "base"),
        Recipe("supervisord", "base"),
        Recipe("docker", "systemd"),
        Recipe("vm", "systemd"),
        Recipe("registry", "base"),
    )
}


def ensure_image(name: str) -> str:
    """Build an image and the ones below it unless they exist already, and return its tag (`ops-lab/<name>:<hash>`).

    Raises: CommandFailed with the end of the build's output.
    """
    tag = image_tag(name)
    if _exists(tag):
        return tag
    with locked(f"image-{name}"):
        if not _exists(tag):
            parent = RECIPES[name].parent
            _build(tag, ensure_image(parent) if parent else _ensure_debian(), _context(name))
    return tag


def image_tag(name: str) -> str:
    """Return the tag an image has now, from the bytes of its build context and of everything below it."""
    parent = RECIPES[name].parent
    below = image_tag(parent) if parent else _debian_tag()
    digest = hashlib.sha256(below.encode() + _context(name)).hexdigest()[:12]
    return f"{PREFIX}/{name}:{digest}"


def lab_images() -> list[str]:
    """Return the tags of all lab images on this machine, old ones too."""
    listed = docker("images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", f"reference={PREFIX}/*")
    return [line for line in listed.splitlines() if line]


def _debian_tag() -> str:
    digest = hashlib.sha256("\n".join((DEBIAN, PACKAGES, *DPKG_OPTIONS)).encode()).hexdigest()[:12]
    return f"{PREFIX}/debian:{digest}"


def _ensure_debian() -> str:
    tag = _debian_tag()
    with locked("image-debian"):
        if not _exists(tag):
            with tempfile.TemporaryDirectory(prefix=f"{PREFIX}-") as folder:
                archive = Path(folder) / "root.tar"
                options = [f"--dpkgopt={option}" for option in DPKG_OPTIONS]
                argv = [
                    "mmdebstrap",
                    "--quiet",
                    "--variant=minbase",
                    f"--include={PACKAGES}",
                    *options,
                    DEBIAN,
                ]
                sh((*argv, archive), timeout_s=600)
                docker("import", archive, tag, timeout_s=180)
    return tag


def _exists(tag: str) -> bool:
    return bool(docker("images", "--quiet", tag).strip())


def _build(tag: str, parent: str, context: bytes) -> None:
    # The classic builder: BuildKit needs a registry for its frontend, and a client without buildx cannot use it.
    argv = (
        "env",
        "DOCKER_BUILDKIT=0",
        docker_client(),
        "build",
        "--tag",
        tag,
        "--build-arg",
        f"PARENT={parent}",
        "-",
    )
    try:
        sh(argv, stdin=context, timeout_s=600)
    except CommandFailed as error:
        raise CommandFailed(f"image {tag} cannot be built: {error}") from error


def _context(name: str) -> bytes:
    """Pack the build context as a tar whose bytes depend on nothing but its files."""
    folder = IMAGE_FOLDER / name
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        if name == "base":
            # Behind a proxy with an authority of its own, pip on a host must trust what this machine trusts.
            archive.addfile(_folder("ca"))
            files |= {f"ca/{path.name}": path for path in CA_FOLDER.glob("*.crt")}
        for arcname, path in sorted(files.items()):
            content = path.read_bytes()
            entry = tarfile.TarInfo(arcname)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _folder(arcname: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(arcname)
    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
    return entry
