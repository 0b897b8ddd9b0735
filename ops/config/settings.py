"""Settings from the environment and `.env`: OPS_INVENTORY, OPS_HOST, and overrides of profile keys.

`OPS_ENGINE__PORT=8001` replaces `engine.port` of every profile that is resolved, `OPS_ENV__NCCL_DEBUG=INFO` adds to
the environment map; values read as in a file (`true`, `8`, `[1, 8]`). The environment wins over `.env`. Overrides of
`speculation` and `fallback` leave non-speculative profiles alone.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dotenv import dotenv_values
from pydantic import Field
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict
from pydantic_settings.sources.utils import parse_env_vars

from ops.config.problems import near
from ops.config.source import Origin, Tree, leaves, scalar
from ops.errors import ConfigError
from ops.model.base import Path as KeyPath
from ops.model.profile import Profile

PREFIX = "OPS_"
NOT_OVERRIDABLE = {"name"}


class Settings(BaseSettings):
    """What is set for this shell or this checkout rather than for a profile."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    inventory: Path | None = Field(None, description="OPS_INVENTORY: inventory file; default envs/hosts.yml.")
    host: str | None = Field(
        None, description="OPS_HOST: host when --host is absent; default: `sandbox`, else the only one."
    )


class _GivenEnvironment(EnvSettingsSource):
    """pydantic-settings' reading of variables, from a mapping that is given instead of the process's own."""

    def __init__(self, settings: type[BaseSettings], environ: Mapping[str, str]) -> None:
        self._given = environ
        super().__init__(settings, env_nested_delimiter="__", env_prefix=PREFIX, case_sensitive=False)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return parse_env_vars(self._given, case_sensitive=False)


def _overrides_model() -> type[BaseSettings]:
    """Every top-level key of a profile, still unchecked: text, or a nested map of text."""
    fields = {name: dict[str, Any] | str | None for name in Profile.model_fields if name not in NOT_OVERRIDABLE}
    namespace: dict[str, Any] = {"__annotations__": fields, **dict.fromkeys(fields)}
    namespace["__module__"] = __name__
    return type("Overrides", (BaseSettings,), namespace)


def find_project(start: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Find the folder that holds `envs/`: OPS_PROJECT, else `start` or the nearest folder above it.

    Raises: ConfigError when there is none.
    """
    named = (os.environ if environ is None else environ).get("OPS_PROJECT")
    if named:
        project = Path(named).expanduser().resolve()
        if not (project / "envs").is_dir():
            raise ConfigError(f"OPS_PROJECT={named}: there is no folder envs/ in it")
        return project
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / "envs" / "profiles").is_dir():
            return folder
    raise ConfigError(
        f"no folder envs/profiles in {start} or above it", hint="cd into the project, or set OPS_PROJECT to its folder"
    )


def load_settings(project: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Read OPS_INVENTORY and OPS_HOST; the environment wins over the project's `.env`."""
    found: dict[str, Any] = {}
    for source, _ in _layers(project, environ):
        found.update(_GivenEnvironment(Settings, source)())
    return Settings.model_validate({key: value for key, value in found.items() if value != ""})


def secret_values(names: tuple[str, ...], project: Path, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Look up the values of a profile's `secrets`.

    Raises: ConfigError naming every variable that is not set; never a value.
    """
    known: dict[str, str] = {}
    for source, _ in _layers(project, environ):
        known.update(source)
    missing = [name for name in names if not known.get(name)]
    if missing:
        raise ConfigError(
            f"the profile's secrets need {', '.join(missing)}, not set here",
            hint="export the variable, or put it into .env beside envs/",
        )
    return {name: known[name] for name in names}


def overrides(project: Path, environ: Mapping[str, str] | None = None) -> list[Tree]:
    """Collect OPS_… overrides of profile keys: those of `.env`, then those of the environment, which win.

    Raises: ConfigError for a variable that names no key, and for a value that cannot be read.
    """
    layers = []
    for source, label in _layers(project, environ):
        _refuse_strangers(source, label)
        layers.append(_layer_tree(_GivenEnvironment(_overrides_model(), source)(), source, label))
    return layers


def _layers(project: Path, environ: Mapping[str, str] | None) -> list[tuple[Mapping[str, str], str]]:
    file = project / ".env"
    dotenv = {key: value for key, value in dotenv_values(file).items() if value is not None} if file.is_file() else {}
    return [(dotenv, ".env"), (os.environ if environ is None else environ, "environment")]


def _refuse_strangers(source: Mapping[str, str], label: str) -> None:
    known = set(Profile.model_fields) - NOT_OVERRIDABLE
    for name in source:
        head, nested, _ = name.removeprefix(PREFIX).partition("__")
        if name.startswith(PREFIX) and nested and head.lower() not in known:
            raise ConfigError(f"{label}: {name}: a profile has no key `{head.lower()}`{near(head.lower(), known)}")


def _layer_tree(found: dict[str, Any], source: Mapping[str, str], label: str) -> Tree:
    spelling = {name.lower(): name for name in source if name.startswith(PREFIX)}
    data: dict[str, Any] = {}
    origins: dict[KeyPath, Origin] = {(): Origin(label)}
    present = {key: value for key, value in found.items() if value not in (None, {})}
    for path, value in leaves(present) if present else ():
        name = spelling.get(f"{PREFIX}{'__'.join(map(str, path))}".lower(), "") or spelling.get(
            f"{PREFIX}{path[0]}".lower(), f"{PREFIX}…"
        )
        at = tuple(str(part) for part in path)
        if path[0] == "env" and "__" in name:
            at = ("env", name[len("OPS_ENV__") :])
        elif path[:2] == ("engine", "flags"):
            at = (*at[:2], *(part.replace("_", "-") for part in at[2:]))
        origin = Origin(f"{label} {name}")
        _put(data, at, _read(value, at, origin))
        for length in range(1, len(at) + 1):
            origins[at[:length]] = origin
    return Tree(data, origins)


def _read(value: Any, at: KeyPath, origin: Origin) -> Any:
    if not isinstance(value, str) or (at[0] == "env" and len(at) > 1):
        return value
    try:
        return scalar(value)
    except ValueError as error:
        raise ConfigError(f"{origin}: {value!r} cannot be read as a value: {error}") from error


def _put(data: dict[str, Any], path: KeyPath, value: Any) -> None:
    *parents, last = path
    for part in parents:
        data = data.setdefault(str(part), {})
    data[str(last)] = value
