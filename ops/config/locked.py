"""What lies beside a stack's file: the digest of its lock, and the image that was built of that lock."""

import hashlib
from pathlib import Path

from pydantic import ValidationError

from ops.errors import ConfigError
from ops.model.stack import BuiltImage, Image, Stack


def with_lock(project: Path, stack: Stack) -> Stack:
    """Return the stack with `lock_sha256` and the built image's digests where they are known.

    An image of another lock is not the stack's: its digests stay unknown, and runtime docker refuses.
    Raises: ConfigError when the image's file is damaged.
    """
    folder = project / "envs" / "stacks"
    lock = folder / f"{stack.name}.lock"
    if not lock.is_file():
        return stack
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    changes: dict[str, object] = {"lock_sha256": digest}
    built = folder / f"{stack.name}.image.json"
    if built.is_file() and (stack.image is None or stack.image.id is None):
        try:
            image = BuiltImage.model_validate_json(built.read_bytes())
        except ValidationError as error:
            raise ConfigError(
                f"envs/stacks/{built.name} is not what `ops image build` writes: {error.errors()[0]['msg']}",
                hint=f"ops image build {stack.name}",
            ) from error
        if image.lock_sha256 == digest:
            changes["image"] = Image(repository=image.repository, tag=image.tag, digest=image.digest, id=image.id)
    return stack.model_copy(update=changes)
