"""Profiles, stacks and NCCL sets from `envs/`: read, extended, overridden, validated, checked against one another."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ops.config.locked import with_lock
from ops.config.merge import merge, without_nulls
from ops.config.problems import near, problems_of, refuse
from ops.config.settings import overrides as setting_overrides
from ops.config.source import Origin, Tree, leaves, read_yaml
from ops.engine.launch_flags import flag_problems, known_versions, load_table
from ops.errors import ConfigError
from ops.model.base import Path as KeyPath
from ops.model.base import Problem
from ops.model.nccl import NcclSet
from ops.model.profile import Profile
from ops.model.stack import Stack

Model = TypeVar("Model", bound=BaseModel)
FOLDERS = {"profile": "profiles", "NCCL set": "nccl", "stack": "stacks"}
NOT_INHERITED = ("description",)


@dataclass(frozen=True)
class Resolved:
    """A profile with everything it names, and where each of its values came from.

    Attributes:
        chain: the profile's file and those it extends, nearest first.
    """

    profile: Profile
    stack: Stack
    nccl: NcclSet
    tree: Tree
    chain: tuple[str, ...]

    def origin(self, path: KeyPath) -> str:
        """Say where the value at `path` came from; `default` when nobody wrote it."""
        return str(self.tree.origins.get(path, "default"))

    def values(self) -> list[tuple[KeyPath, Any]]:
        """Every key of the resolved profile with its value, defaults included."""
        return list(leaves(self.profile.model_dump(mode="json")))


def names_in(project: Path, kind: str) -> list[str]:
    """Names of all profiles, NCCL sets or stacks of the project, sorted."""
    return sorted(file.stem for file in (project / "envs" / FOLDERS[kind]).glob("*.yaml"))


def profile_names(project: Path) -> list[str]:
    """Names of all profiles, sorted."""
    return names_in(project, "profile")


def load_profile(
    project: Path,
    name: str,
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> Profile:
    """Resolve and check one profile; see `resolve_profile`."""
    return resolve_profile(project, name, overrides, environ=environ).profile


def resolve_profile(
    project: Path,
    name: str,
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> Resolved:
    """Read a profile, apply `extends`, OPS_… settings and `overrides` (in this order), and check all it names.

    Args: overrides: nested map as in the file, from the command line.
    Raises: ConfigError with every mistake.
    """
    tree, chain = _profile_tree(project, name, overrides, environ)
    profile = _validated(Profile, f"profile {name}", tree)
    problems: list[Problem] = []
    stack = _named(load_stack, project, profile.stack, ("stack",), problems)
    nccl = _named(load_nccl, project, profile.nccl, ("nccl",), problems)
    if stack is not None:
        problems += _engine_problems(profile, stack)
    if profile.fallback is not None and profile.speculation is not None:
        problems += _fallback_problems(project, profile, overrides, environ)
    if problems or stack is None or nccl is None:
        raise refuse(f"profile {name}", problems, tree)
    return Resolved(profile, stack, nccl, tree, chain)


def load_nccl(project: Path, name: str) -> NcclSet:
    """Read one NCCL set.

    Raises: ConfigError with every mistake.
    """
    return _validated(NcclSet, f"NCCL set {name}", _file_tree(project, "NCCL set", name))


def load_stack(project: Path, name: str) -> Stack:
    """Read one stack.

    Raises: ConfigError with every mistake.
    """
    tree = _file_tree(project, "stack", name)
    if "lock_sha256" in tree.data:
        where = tree.origins[("lock_sha256",)]
        raise ConfigError(f"{where}: lock_sha256: is read from {name}.lock, never written here")
    return with_lock(project, _validated(Stack, f"stack {name}", tree))


def _profile_tree(
    project: Path, name: str, overrides: Mapping[str, Any] | None, environ: Mapping[str, str] | None
) -> tuple[Tree, tuple[str, ...]]:
    tree, chain = _extended(project, name, ())
    speculative = isinstance(tree.data.get("speculation"), dict)
    for layer in setting_overrides(project, environ):
        kept = {k: v for k, v in layer.data.items() if speculative or k not in ("speculation", "fallback")}
        tree = merge(tree, Tree(kept, layer.origins))
    if overrides:
        given = Origin("command line")
        tree = merge(tree, Tree(dict(overrides), {(): given, **{(key,): given for key in overrides}}))
    return without_nulls(tree), chain


def _extended(project: Path, name: str, below: tuple[str, ...]) -> tuple[Tree, tuple[str, ...]]:
    tree = _file_tree(project, "profile", name)
    parent = tree.data.pop("extends", None)
    if parent is None:
        return tree, (*below, name)
    where = tree.origins[("extends",)]
    if not isinstance(parent, str) or parent not in profile_names(project):
        raise ConfigError(f"{where}: extends: unknown profile {parent!r}{near(str(parent), profile_names(project))}")
    if parent in (*below, name):
        raise ConfigError(f"{where}: extends: {' -> '.join((*below, name, parent))} goes in a circle")
    base, chain = _extended(project, parent, (*below, name))
    inherited = {key: value for key, value in base.data.items() if key not in (*NOT_INHERITED, "name")}
    return merge(Tree(inherited, base.origins), tree), chain


def _file_tree(project: Path, kind: str, name: str) -> Tree:
    known = names_in(project, kind)
    folder = f"envs/{FOLDERS[kind]}"
    if name not in known:
        raise ConfigError(
            f"unknown {kind} {name!r}{near(name, known)}", hint=f"{folder}/ has: {', '.join(known) or 'none'}"
        )
    file = f"{folder}/{name}.yaml"
    tree = read_yaml(project / file, file)
    written = tree.data.setdefault("name", name)
    tree.origins.setdefault(("name",), Origin(file))
    if written != name:
        raise ConfigError(f"{tree.origins[('name',)]}: name: {written!r}, but the file is called {name}.yaml")
    return tree if kind != "profile" else _flags_with_dashes(tree)


def _flags_with_dashes(tree: Tree) -> Tree:
    """Spell engine flags one way, so that `watchdog_timeout` in a variant replaces `watchdog-timeout` of its parent."""
    engine = tree.data.get("engine")
    flags = engine.get("flags") if isinstance(engine, dict) else None
    if isinstance(engine, dict) and isinstance(flags, dict):
        spelt = {key: key.replace("_", "-") for key in flags}
        if len(set(spelt.values())) == len(spelt):
            engine["flags"] = {spelt[key]: value for key, value in flags.items()}
            for path in [p for p in tree.origins if p[:2] == ("engine", "flags") and len(p) > 2]:
                tree.origins[(*path[:2], spelt[str(path[2])], *path[3:])] = tree.origins[path]
    return tree


def _validated(model: type[Model], what: str, tree: Tree) -> Model:
    try:
        return model.model_validate(tree.data)
    except ValidationError as error:
        raise refuse(what, problems_of(error, model, tree.data), tree) from None


def _named(load: Any, project: Path, name: str, at: KeyPath, problems: list[Problem]) -> Any:
    try:
        return load(project, name)
    except ConfigError as error:
        hint = f" ({error.hint})" if error.hint else ""
        problems.append(Problem(at, f"{error.message}{hint}".replace("\n", "\n    ")))
        return None


def _engine_problems(profile: Profile, stack: Stack) -> list[Problem]:
    if stack.engine_version not in known_versions():
        return [
            Problem(
                ("stack",),
                f"{stack.name} pins SGLang {stack.engine_version}, whose flags are not known here; "
                f"known: {', '.join(known_versions())}",
            )
        ]
    return flag_problems(profile, load_table(stack.engine_version))


def _fallback_problems(
    project: Path, profile: Profile, overrides: Mapping[str, Any] | None, environ: Mapping[str, str] | None
) -> list[Problem]:
    name, at = str(profile.fallback), ("fallback",)
    shared = {k: v for k, v in (overrides or {}).items() if k not in ("speculation", "fallback")}
    try:
        tree, _ = _profile_tree(project, name, shared, environ)
        fallback = _validated(Profile, f"profile {name}", tree)
    except ConfigError as error:
        hint = f" ({error.hint})" if error.hint else ""
        return [Problem(at, f"{error.message}{hint}".replace("\n", "\n    "))]
    if fallback.speculation is not None:
        return [Problem(at, f"{name} is speculative itself; the fallback and yardstick drafts nothing")]
    same = {
        "stack": (profile.stack, fallback.stack),
        "engine.model_path": (profile.engine.model_path, fallback.engine.model_path),
        "engine.port": (profile.engine.port, fallback.engine.port),
        "target": (profile.target, fallback.target),
        "traffic.prompts": (profile.traffic.prompts, fallback.traffic.prompts),
    }
    return [
        Problem(at, f"{name} has another {key} ({theirs} against {ours}); a fallback serves the same model")
        for key, (ours, theirs) in same.items()
        if ours != theirs
    ]
