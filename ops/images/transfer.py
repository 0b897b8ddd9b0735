"""Bring an image to a host that reaches no registry: what `docker save` says here goes into `docker load` there."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from docker.errors import ImageNotFound

from ops.errors import ConfigError
from ops.hosts.ssh import SshHost
from ops.images.build import need_image
from ops.images.daemon import Say, daemon
from ops.model.stack import BuiltImage

SAY_EVERY_S = 5.0
SAVE_TIMEOUT_S = 3600


def software_of(image: BuiltImage) -> dict[str, Any]:
    """The image as a release's manifest names it."""
    reference = f"{image.repository}@{image.digest}" if image.digest else None
    return {"kind": "image", "id": image.id, "reference": reference, "stack": image.stack, "lock": image.lock_sha256}


def load_on(project: Path, name: str, host: SshHost, say: Say) -> bool:
    """Have a stack's image on a host; returns whether it had to be sent.

    Raises: ConfigError when it is not here, or the host holds another image afterwards; ConnectionLost, RemoteFailed.
    """
    image = need_image(project, name)
    if host.call("stack.image", image=image.id, wait_s=120.0)["present"]:
        say(f"image {image.id[7:19]} is on the host already")
        return False
    with daemon(SAVE_TIMEOUT_S) as client:
        try:
            found = client.images.get(image.id)
        except ImageNotFound as error:
            raise ConfigError(
                f"image {image.id[7:19]} of stack {name} is not on this machine", hint=f"ops image build {name}"
            ) from error
        size = int(found.attrs["Size"])
        # By id: a tag may have been moved here since the build.
        host.feed(("docker", "load"), _counted(client.api.get_image(image.id), size, say))
    seen = host.call("stack.image", image=image.id, wait_s=120.0)
    if not seen["present"]:
        raise ConfigError(
            f"the image was sent, but the host does not have image {image.id[7:19]}",
            hint="its Docker may keep images by other ids (containerd image store); use a registry instead",
            host=host.name,
        )
    host.call("stack.tag", image=image.id, name=f"{image.repository}:{image.tag}", wait_s=120.0)
    say(f"image {image.id[7:19]} is on the host, its id checked")
    return True


def _counted(blocks: Iterable[bytes], size: int, say: Say) -> Iterator[bytes]:
    """Pass the blocks on, and say every few seconds how far it is. `size`: bytes of the unpacked image."""
    begun = said = time.monotonic()
    sent = 0
    for block in blocks:
        yield block
        sent += len(block)
        now = time.monotonic()
        if now - said >= SAY_EVERY_S:
            said = now
            rate = sent / (now - begun)
            left = max(0.0, (size - sent) / rate) if rate else 0.0
            say(f"sent {sent / 1e6:.0f} of about {size / 1e6:.0f} MB, {rate / 1e6:.0f} MB/s, about {left:.0f} s left")
    say(f"sent {sent / 1e6:.0f} MB in {time.monotonic() - begun:.0f} s")
