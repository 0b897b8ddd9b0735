"""The engine's command line, as words: one tuple a flag. No shell text here; templates quote."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ops.errors import ConfigError
from ops.model.inventory import HostSpec
from ops.model.profile import SECRET_FLAGS, Profile
from ops.model.stack import Stack

Flag = tuple[str, ...]
SECRETS_FILE = "secrets.yaml"
CONTAINER_SECRETS = "/run/ops/secrets.yaml"


def engine_argv(profile: Profile, host: HostSpec) -> tuple[Flag, ...]:
    """Flags of `python -m sglang.launch_server`, in a fixed order, secrets left out.

    Source of the names: SGLang 0.5.23 `--help` (`ops/engine/flags/`).
    """
    return (*_engine(profile, host), *_speculation(profile, host), *_further(profile))


def secret_flags(profile: Profile) -> dict[str, str]:
    """Engine flags whose values are secrets: flag name to the variable that holds the value."""
    return {flag: variable for flag, variable in SECRET_FLAGS.items() if variable in profile.secrets}


def container_argv(profile: Profile, stack: Stack, host: HostSpec) -> tuple[Flag, ...]:
    """Words of `docker run` up to the image; paths that launch.sh knows at run time are left to the template.

    Raises: ConfigError when the stack has no image by digest.
    """
    image = stack.image
    if image is None or image.digest is None:
        raise ConfigError(
            f"profile {profile.name} has runtime docker, but stack {stack.name} has no image digest",
            hint="lock and build the stack's image first, or use runtime native",
        )
    models = [host.path(profile.engine.model_path)]
    if profile.speculation is not None:
        models.append(host.path(profile.speculation.draft_path))
    return (
        ("--name", f"sglang-{host.instance}"),
        ("--network", "host"),
        ("--ipc", "host"),
        ("--gpus", "all"),
        ("--ulimit", "memlock=-1"),
        ("--ulimit", "stack=67108864"),
        *(("--mount", f"type=bind,src={path},dst={path},readonly") for path in models),
    )


def server_info(profile: Profile, host: HostSpec) -> dict[str, Any]:
    """What `/server_info` must say when this release runs: the effective configuration to compare with."""
    engine, spec = profile.engine, profile.speculation
    expected: dict[str, Any] = {
        "model_path": host.path(engine.model_path),
        "tp_size": engine.tensor_parallel,
        "host": host.bind or engine.host,
        "port": engine.port,
        "mem_fraction_static": engine.mem_fraction_static,
        "max_running_requests": engine.max_running_requests,
        "disable_custom_all_reduce": engine.disable_custom_all_reduce,
        "speculative_algorithm": spec.algorithm if spec else None,
    }
    for key, value in (
        ("served_model_name", engine.served_model_name),
        ("context_length", engine.context_length),
        ("attention_backend", engine.attention_backend),
    ):
        if value is not None:
            expected[key] = value
    if spec is not None:
        expected |= {
            "speculative_draft_model_path": host.path(spec.draft_path),
            "speculative_num_steps": spec.steps,
            "speculative_eagle_topk": spec.topk,
            "speculative_num_draft_tokens": spec.draft_tokens,
            "speculative_adaptive": spec.adaptive,
        }
    return expected


def _engine(profile: Profile, host: HostSpec) -> Iterator[Flag]:
    engine = profile.engine
    yield _flag("model-path", host.path(engine.model_path))
    if engine.served_model_name is not None:
        yield _flag("served-model-name", engine.served_model_name)
    yield _flag("tp-size", engine.tensor_parallel)
    yield _flag("host", host.bind or engine.host)
    yield _flag("port", engine.port)
    yield _flag("mem-fraction-static", engine.mem_fraction_static)
    if engine.context_length is not None:
        yield _flag("context-length", engine.context_length)
    yield _flag("max-running-requests", engine.max_running_requests)
    if engine.attention_backend is not None:
        yield _flag("attention-backend", engine.attention_backend)
    for name, wanted in (
        ("trust-remote-code", engine.trust_remote_code),
        ("disable-custom-all-reduce", engine.disable_custom_all_reduce),
        ("enable-metrics", engine.enable_metrics),
    ):
        if wanted:
            yield (f"--{name}",)


def _speculation(profile: Profile, host: HostSpec) -> Iterator[Flag]:
    spec = profile.speculation
    if spec is None:
        return
    yield _flag("speculative-algorithm", spec.algorithm)
    yield _flag("speculative-draft-model-path", host.path(spec.draft_path))
    yield _flag("speculative-num-steps", spec.steps)
    yield _flag("speculative-eagle-topk", spec.topk)
    yield _flag("speculative-num-draft-tokens", spec.draft_tokens)
    if spec.accept_threshold_single is not None:
        yield _flag("speculative-accept-threshold-single", spec.accept_threshold_single)
    if spec.accept_threshold_acc is not None:
        yield _flag("speculative-accept-threshold-acc", spec.accept_threshold_acc)
    if spec.adaptive:
        yield ("--speculative-adaptive",)


def _further(profile: Profile) -> Iterator[Flag]:
    for key in sorted(profile.engine.flags):
        name, value = key.replace("_", "-").removeprefix("--"), profile.engine.flags[key]
        if value is True:
            yield (f"--{name}",)
        elif value is not False:
            yield _flag(name, *(value if isinstance(value, list) else [value]))


def _flag(name: str, *values: object) -> Flag:
    words = tuple(value if isinstance(value, str) else json.dumps(value) for value in values)
    if len(words) == 1 and words[0].startswith("-"):
        return (f"--{name}={words[0]}",)  # argparse would take the value for a flag
    return (f"--{name}", *words)


def words(flags: Sequence[Flag]) -> list[str]:
    """All words of the flags, in order."""
    return [word for flag in flags for word in flag]


def secrets_file(profile: Profile, secrets: Mapping[str, str]) -> bytes:
    """The engine's `--config` file with the flags that must not be in the process list."""
    lines = [f"{flag}: {json.dumps(secrets[variable])}" for flag, variable in sorted(secret_flags(profile).items())]
    return "".join(f"{line}\n" for line in lines).encode()
