"""`engine.env`: KEY=VALUE lines that launch.sh, systemd and docker read alike (see `ops.model.env_values`)."""

import posixpath
import re
from collections.abc import Iterable, Mapping

from ops.errors import ConfigError
from ops.model.env_values import value_problem
from ops.model.inventory import HostSpec
from ops.model.nccl import NcclSet
from ops.model.profile import SECRET_FLAGS, Profile

STANDARD_PATH = "/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def engine_environment(profile: Profile, nccl: NcclSet, host: HostSpec) -> dict[str, str]:
    """The engine's environment without secrets, sorted by name. A profile's `env` wins over its NCCL set.

    SPT_NOENV=1 keeps each rank's /proc/<pid>/environ readable: SGLang's ranks set their title, which blanks it else.
    Source: SGLang 0.5.23 on a CPU, environ of scheduler and detokenizer with and without it.
    """
    environment = {**nccl.env, **profile.env, "SPT_NOENV": "1"}
    if profile.runtime == "native" and "PATH" not in environment:
        environment["PATH"] = ":".join([*host.search_path, posixpath.dirname(host.engine_python), STANDARD_PATH])
    return dict(sorted(environment.items()))


def secret_environment(profile: Profile, secrets: Mapping[str, str]) -> dict[str, str]:
    """The secrets that the engine reads from its environment, sorted by name.

    Raises: ConfigError naming the variable (never the value) when one is missing or cannot be written.
    """
    for name in profile.secrets:
        value = secrets.get(name)
        if not value:
            raise ConfigError(f"profile {profile.name} needs the secret {name}, and it is not set here")
        reason = value_problem(value)
        if reason:
            raise ConfigError(f"the secret {name} {reason}")
    in_file = set(SECRET_FLAGS.values())
    return {name: secrets[name] for name in sorted(profile.secrets) if name not in in_file}


def env_lines(environment: Mapping[str, str]) -> bytes:
    """Write the lines of engine.env.

    Raises: ConfigError when a value would be read differently by one of its readers.
    """
    for name, value in environment.items():
        reason = value_problem(value)
        if reason:
            raise ConfigError(f"{name}: the value {reason}")
    return "".join(f"{name}={value}\n" for name, value in environment.items()).encode()


def without_secrets(content: bytes, names: Iterable[str]) -> bytes:
    """Empty the values of `names` in an engine.env or secrets.yaml: what ids and digests are made from."""
    for name in names:
        content = re.sub(rb"(?m)^(%s)(=|: ).*$" % re.escape(name.encode()), rb"\1\2", content)
    return content
