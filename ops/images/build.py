"""Build, prove, list and push images on this machine's Docker daemon."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docker.client import DockerClient
from docker.errors import APIError, DockerException, ImageNotFound

from ops.errors import ConfigError
from ops.images.daemon import Say, daemon, progress
from ops.images.dockerfile import PREFIX, context_archive, context_files, epoch
from ops.model.stack import BuiltImage, Stack, StackLock
from ops.model.verdict import Question, Verdict
from ops.remote import stack_probe
from ops.stacks import proof
from ops.stacks.compare import stale
from ops.stacks.lock import image_path, need_lock, read_image, stack_folder

BUILD_TIMEOUT_S = 7200
MADE = Question("image", "Was the image made from this lock, and does nothing of its own start or change the engine?")
HARMLESS_NCCL = ("NCCL_VERSION",)
"""Set by NVIDIA's base images, a word about them and no setting; removed when the engine starts."""


def build(project: Path, stack: Stack, say: Say, *, argv: Sequence[str] = ()) -> tuple[BuiltImage, list[Verdict]]:
    """Build the image of a stack's lock, prove it from the inside, and write NAME.image.json when it is proven.

    Raises: ConfigError when the lock is missing or old, the base has no digest, or Docker says no.
    """
    lock, digest = need_lock(project, stack.name)
    why = stale(stack, lock)
    if why:
        raise ConfigError(f"stack {stack.name}: the lock is old: {why}", hint=f"ops stack lock {stack.name}")
    files = context_files(lock, digest, stack, stack_folder(project))
    repository, tag = repository_of(stack), digest[:12]
    with daemon(BUILD_TIMEOUT_S) as client:
        _pull_base(client, lock, say)
        say(f"{stack.name}: building {repository}:{tag}")
        try:
            events = client.api.build(
                fileobj=io.BytesIO(context_archive(files, epoch(lock))),
                custom_context=True,
                tag=f"{repository}:{tag}",
                decode=True,
                rm=True,
                forcerm=True,
            )
            progress(events, say)
            image = client.images.get(f"{repository}:{tag}")
        except DockerException as error:
            raise ConfigError(f"stack {stack.name}: Docker could not build it: {error}") from error
        built = BuiltImage(stack=stack.name, lock_sha256=digest, repository=repository, tag=tag, id=image.id)
        say(f"{stack.name}: proving {image.short_id} from the inside")
        found = examine(client, str(image.id), lock, digest, argv=argv, archs=stack.gpu_archs)
    if all(v.passed or v.outcome == "skipped" for v in found):
        write_image(project, built)
    return built, found


def _pull_base(client: DockerClient, lock: StackLock, say: Say) -> None:
    """Fetch the base by digest, with progress; a base that is here already is not asked for again."""
    if lock.base is None or lock.base.digest is None:
        return
    try:
        client.images.get(lock.base.reference)
        return
    except ImageNotFound:
        say(f"pulling {lock.base.reference}")
    except APIError as error:
        raise ConfigError(f"Docker: {error.explanation}") from error
    try:
        progress(client.api.pull(lock.base.reference, stream=True, decode=True), say)
    except APIError as error:
        raise ConfigError(f"the base image {lock.base.reference} cannot be pulled: {error.explanation}") from error


def repository_of(stack: Stack) -> str:
    """The repository that a stack's image is called by."""
    return stack.image.repository if stack.image else f"ops/{stack.name}"


def write_image(project: Path, built: BuiltImage) -> None:
    """Write NAME.image.json."""
    path = image_path(project, built.stack)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(json.dumps(built.model_dump(mode="json"), indent=1, sort_keys=True) + "\n")
    temporary.replace(path)


def need_image(project: Path, name: str) -> BuiltImage:
    """The image of a stack's present lock. Raises: ConfigError when none was built of it."""
    _, digest = need_lock(project, name)
    image = read_image(project, name)
    if image is None:
        raise ConfigError(f"no image of stack {name} was built", hint=f"ops image build {name}")
    if image.lock_sha256 != digest:
        raise ConfigError(
            f"image {image.id[7:19]} of stack {name} was built of lock {image.lock_sha256[:12]}, "
            f"the lock is {digest[:12]} now",
            hint=f"ops image build {name}",
        )
    return image


def verify(project: Path, name: str, *, argv: Sequence[str] = (), archs: Sequence[str] = ()) -> list[Verdict]:
    """Prove the image of a stack that lies on this machine. Raises: ConfigError when it does not."""
    lock, digest = need_lock(project, name)
    image = read_image(project, name)
    if image is None:
        raise ConfigError(f"no image of stack {name} was built", hint=f"ops image build {name}")
    with daemon() as client:
        _present(client, image)
        return examine(client, image.id, lock, digest, argv=argv, archs=archs)


def _present(client: DockerClient, image: BuiltImage) -> Any:
    try:
        return client.images.get(image.id)
    except ImageNotFound as error:
        raise ConfigError(
            f"image {image.id[7:19]} of stack {image.stack} is not on this machine",
            hint=f"ops image build {image.stack}",
        ) from error


def examine(
    client: DockerClient,
    image_id: str,
    lock: StackLock,
    lock_sha256: str,
    *,
    argv: Sequence[str] = (),
    archs: Sequence[str] = (),
) -> list[Verdict]:
    """Run the image without a network and compare it with the lock inside it."""
    made = judge_image(client.images.get(image_id).attrs, lock_sha256)
    asked = proof.request(lock, argv=argv)
    command = [f"{PREFIX}/bin/python", "-I", "-c", probe_source(), json.dumps(asked)]
    try:
        output = client.containers.run(image_id, command, network_mode="none", remove=True, entrypoint="")
        answer = json.loads(output)
    except (DockerException, ValueError) as error:
        broken = proof.PACKAGES.failed(
            f"the image cannot be asked: {str(error)[-400:]}", "look at it with `docker run`, then build it again"
        )
        return [made, broken]
    return [made, *proof.verdicts(answer, lock, asked, archs)]


def probe_source() -> str:
    """The program that an environment runs to say what it is."""
    return Path(stack_probe.__file__).read_text(encoding="utf-8")


def judge_image(attrs: Any, lock_sha256: str) -> Verdict:
    """Judge an image's own configuration, as `docker image inspect` shows it. Pure."""
    config = attrs.get("Config") or {}
    labels = config.get("Labels") or {}
    problems = []
    if labels.get("ops.lock") != lock_sha256:
        of = labels.get("ops.lock")
        problems.append(f"it was built of {'lock ' + of[:12] if of else 'no lock'}, the lock is {lock_sha256[:12]}")
    if config.get("User") in (None, "", "0", "root", "0:0"):
        problems.append("it starts as root")
    if config.get("Entrypoint"):
        problems.append(f"it has an entrypoint of its own: {config['Entrypoint']}")
    check = (config.get("Healthcheck") or {}).get("Test") or ["NONE"]
    if check != ["NONE"]:
        problems.append(f"it has a health check of its own: {check}")
    names = [entry.partition("=")[0] for entry in config.get("Env") or []]
    settings = [name for name in names if name.startswith("NCCL_") and name not in HARMLESS_NCCL]
    if settings:
        problems.append(f"its environment sets {', '.join(settings)} behind the profile's back")
    if problems:
        return MADE.failed("; ".join(problems), f"ops image build {labels.get('ops.stack', '')}".strip())
    return MADE.passed(f"lock {lock_sha256[:12]}, user {config['User']}")


def push(project: Path, name: str, say: Say) -> BuiltImage:
    """Push a stack's image to the registry that its repository names, and keep the digest that it has there."""
    image = need_image(project, name)
    with daemon(BUILD_TIMEOUT_S) as client:
        _present(client, image)
        try:
            events = client.api.push(image.repository, tag=image.tag, stream=True, decode=True)
            kept = progress(events, say)
        except DockerException as error:
            raise ConfigError(f"{image.repository} cannot be pushed: {error}") from error
        digest = next((e["aux"]["Digest"] for e in reversed(kept) if "Digest" in (e.get("aux") or {})), None)
    if digest is None:
        raise ConfigError(f"the registry of {image.repository} did not say the digest of what was pushed")
    pushed = image.model_copy(update={"digest": digest})
    write_image(project, pushed)
    return pushed


def listed() -> list[dict[str, Any]]:
    """Every image on this machine that was built from a lock: [{stack, lock, id, tags, size_mib}]."""
    with daemon(60) as client:
        images = client.images.list(filters={"label": "ops.lock"})
        return [
            {
                "stack": image.labels.get("ops.stack", ""),
                "lock": image.labels["ops.lock"],
                "id": image.id,
                "tags": list(image.tags),
                "size_mib": round(image.attrs["Size"] / (1 << 20)),
            }
            for image in images
        ]
