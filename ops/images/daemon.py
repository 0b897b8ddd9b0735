"""The Docker daemon of the machine that `ops` runs on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from docker.client import DockerClient
from docker.errors import APIError, DockerException

from ops.errors import ConfigError
from ops.model.stack import Image

Say = Callable[[str], None]
TIMEOUT_S = 600


@contextmanager
def daemon(timeout_s: int = TIMEOUT_S) -> Iterator[DockerClient]:
    """A client of the daemon that DOCKER_HOST names. Raises: ConfigError when none answers."""
    try:
        client = DockerClient.from_env(timeout=timeout_s)
        client.ping()
    except (DockerException, OSError) as error:
        raise ConfigError(
            f"no Docker daemon answers here: {_reason(error)}",
            hint="start it, or set DOCKER_HOST to one that you may use",
        ) from error
    try:
        yield client
    finally:
        client.close()


def registry_digest(image: Image) -> str:
    """Ask the image's registry what a tag is now. Raises: ConfigError when it does not say."""
    with daemon(60) as client:
        try:
            return str(client.images.get_registry_data(f"{image.repository}:{image.tag or 'latest'}").id)
        except (APIError, DockerException) as error:
            raise ConfigError(f"its registry does not answer: {_reason(error)}") from error


def progress(events: Iterator[dict[str, Any]], say: Say) -> list[dict[str, Any]]:
    """Show what the daemon streams, layers as one line each when they change state; return all events.

    Raises: ConfigError with the daemon's own words when an event says that it failed.
    """
    seen: dict[str, str] = {}
    kept = []
    for event in events:
        kept.append(event)
        if "error" in event:
            raise ConfigError(f"Docker: {event['error'].strip()}")
        text = (event.get("stream") or "").strip()
        if text:
            say(text)
        layer, status = event.get("id"), event.get("status")
        if layer and status and seen.get(layer) != status and "ing" not in status.partition(" ")[0]:
            seen[layer] = status
            say(f"{layer}: {status}")
        elif status and not layer:
            say(status)
    return kept


def _reason(error: Exception) -> str:
    return str(getattr(error, "explanation", None) or error).strip()[:300]
