"""The engine's command line, as words: one tuple a flag. No shell text here; templates quote."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ops.errors import ConfigError
from ops.model.inventory import HostSpec
from ops.model.profile import SECRET_FLAGS, Profile
from ops.model.stack import Stack

Flag = tuple[str, ...]
SECRETS_FILE = "secrets.yaml"
CONTAINER_SECRETS = "/run/ops/secrets.yaml"
CONTAINER_PYTHON = "/opt/sglang/bin/python"
CONTAINER_CACHE = "/var/cache/engine"
CONTAINER_UID = 10001
OWNER_FORMAT = '{{with index .Config.Labels "ops.instance-dir"}}{{.}}{{else}}-{{end}}'
"""As `docker/Dockerfile.j2` makes them; a test compares."""


def engine_argv(profile: Profile, host: HostSpec) -> tuple[Flag, ...]:
    """Flags of `python -m sglang.launch_server`, in a fixed order, secrets left out.

    Source of the names: SGLang 0.5.23 `--help` (`ops/engine/flags/`).
    """
    return (*_engine(profile, host), *_nodes(host), *_speculation(profile, host), *_further(profile))


def secret_flags(profile: Profile) -> dict[str, str]:
    """Engine flags whose values are secrets: flag name to the variable that holds the value."""
    return {flag: variable for flag, variable in SECRET_FLAGS.items() if variable in profile.secrets}


def container_argv(profile: Profile, stack: Stack, host: HostSpec) -> tuple[Flag, ...]:
    """Words of `docker run` up to the image; paths that launch.sh knows at run time are left to the template.

    The restart policy is `no`: systemd starts it again, never both. Docker keeps no log: launch.sh writes one.
    """
    models = [host.path(profile.engine.model_path)]
    if profile.speculation is not None:
        models.append(host.path(profile.speculation.draft_path))
    stop_wall_s = max(1, math.ceil(profile.timeouts.stop_timeout_s / host.time_scale))
    return (
        ("--name", container_name(host)),
        ("--pull", "never"),
        ("--restart", "no"),
        ("--log-driver", "none"),
        ("--network", "host"),
        ("--ipc", "host"),
        *((("--gpus", _gpus(host.container_gpus)),) if host.container_gpus != "none" else ()),
        *(("--ulimit", limit) for limit in host.container_ulimits),
        ("--stop-signal", "SIGTERM"),
        ("--stop-timeout", str(stop_wall_s)),
        # Named without a value it is removed: a word of NVIDIA's base images, no setting of NCCL.
        *((("--env", "NCCL_VERSION"),) if "NCCL_VERSION" not in profile.env else ()),
        *(("--mount", f"type=bind,src={path},dst={path},readonly") for path in dict.fromkeys(models)),
        *(("--mount", f"type=bind,src={src},dst={dst}") for src, dst in sorted(host.container_mounts.items())),
        *_kernel_cache(stack),
    )


def _gpus(value: str) -> str:
    """The value of --gpus as Docker's CSV reader takes it: an option that holds a comma stands in double quotes.

    Bare, `device=0,1` is a device and a count, and Docker starts nothing ("cannot set both Count and DeviceIDs").
    Source: docker/cli opts/gpus.go (GpuOpts.Set).
    """
    options = re.split(r",(?=[a-z]+=)", value)
    return ",".join(f'"{option}"' if "," in option else option for option in options)


def container_name(host: HostSpec) -> str:
    """The one name that a container of the host's instance has."""
    return f"sglang-{host.instance}"


def image_word(profile: Profile, stack: Stack) -> str:
    """What `docker run` starts: the image's own id, else its digest in a registry; never a tag.

    Raises: ConfigError when neither is known.
    """
    image = stack.image
    if image is not None and image.id is not None:
        return image.id
    if image is not None and image.digest is not None:
        return image.reference
    raise ConfigError(
        f"profile {profile.name} has runtime docker, but stack {stack.name} has no image digest"
        + (f" for its lock {stack.lock_sha256[:12]}" if stack.lock_sha256 else ""),
        hint=f"ops image build {stack.name}; or use runtime native",
    )


def _kernel_cache(stack: Stack) -> Iterator[Flag]:
    """A volume for kernels compiled at run time. It belongs to one lock: another build's kernels are never reused."""
    if stack.lock_sha256 is not None:
        yield ("--mount", f"type=volume,src=ops-kernels-{stack.folder},dst={CONTAINER_CACHE}")


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
    if host.node is not None:
        expected |= {
            "nnodes": host.node.nodes,
            "node_rank": host.node.rank,
            "dist_init_addr": host.node.dist_init_addr,
        }
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


def _nodes(host: HostSpec) -> Iterator[Flag]:
    if host.node is not None:
        yield _flag("nnodes", host.node.nodes)
        yield _flag("node-rank", host.node.rank)
        yield _flag("dist-init-addr", host.node.dist_init_addr)


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
