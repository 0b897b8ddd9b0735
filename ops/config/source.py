"""YAML files with the line of every key, read in a dialect that has no surprises.

Scalars follow YAML 1.2's core rules, not YAML 1.1's: `on`, `no`, `012`, `1_000`, `12:30` and dates stay text, so an
environment value is what one reads. A key written twice, merge keys and tags are refused.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ops.errors import ConfigError
from ops.model.base import Path as KeyPath


@dataclass(frozen=True)
class Origin:
    """Where a value came from: a file and a line, or the name of a variable."""

    name: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.name}:{self.line}" if self.line else self.name


@dataclass(frozen=True)
class Tree:
    """A document (nested maps, lists, scalars) and the origin of every key and list item in it."""

    data: dict[str, Any]
    origins: dict[KeyPath, Origin] = field(default_factory=dict)

    def origin(self, path: KeyPath) -> Origin | None:
        """Return the origin of the deepest key on `path` that has one."""
        for length in range(len(path), -1, -1):
            found = self.origins.get(path[:length])
            if found:
                return found
        return None


class _CoreLoader(yaml.SafeLoader):
    """Its implicit types are those of `_core_rules`, none of PyYAML's own."""


def _core_rules() -> None:
    _CoreLoader.yaml_implicit_resolvers = {}
    add = _CoreLoader.add_implicit_resolver
    add("tag:yaml.org,2002:null", re.compile(r"^(~|null|Null|NULL|)$"), ["~", "n", "N", ""])
    add("tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
    add("tag:yaml.org,2002:int", re.compile(r"^-?(0|[1-9][0-9]*)$"), list("-0123456789"))
    number = r"^-?(0|[1-9][0-9]*)(\.[0-9]+([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)$"
    add("tag:yaml.org,2002:float", re.compile(number), list("-0123456789"))


_core_rules()


def scalar(text: str) -> Any:
    """Read one value as a file would: `true`, `8`, `0.5`, `[1, 8]`, `LL,Simple`.

    Raises: ValueError when the text is no YAML value.
    """
    try:
        node = yaml.compose(text, Loader=_CoreLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error).splitlines()[0]) from error
    if node is None:
        return None
    return _value(node, (), {}, Origin("setting"))


def read_yaml(path: Path, shown_as: str) -> Tree:
    """Read one file whose top level is a map.

    Raises: ConfigError naming `shown_as` and the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{shown_as}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{shown_as}: cannot be read: {error}") from error
    try:
        node = yaml.compose(text, Loader=_CoreLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{shown_as}:{line}: not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{shown_as}: not YAML: {error}") from error
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(
            f"{shown_as}:1: a map of keys is expected, not {'an empty file' if node is None else 'a list or text'}"
        )
    origins: dict[KeyPath, Origin] = {(): Origin(shown_as, 1)}
    try:
        data = _value(node, (), origins, Origin(shown_as))
    except _Refused as refused:
        raise ConfigError("\n".join(f"{shown_as}:{line}: {text}" for line, text in refused.problems)) from None
    return Tree(data, origins)


class _Refused(ValueError):
    def __init__(self, problems: list[tuple[int, str]]) -> None:
        super().__init__("; ".join(text for _, text in problems))
        self.problems = problems


def _value(node: yaml.Node, path: KeyPath, origins: dict[KeyPath, Origin], source: Origin) -> Any:
    if len(path) > 32:
        raise _Refused([(node.start_mark.line + 1, "nested too deep (an alias that holds itself?)")])
    if isinstance(node, yaml.MappingNode):
        return _map(node, path, origins, source)
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            origins[(*path, index)] = Origin(source.name, item.start_mark.line + 1)
            items.append(_value(item, (*path, index), origins, source))
        return items
    known = {"null", "bool", "int", "float", "str"}
    kind = node.tag.rpartition(":")[2]
    if kind not in known:
        raise _Refused([(node.start_mark.line + 1, f"the tag {node.tag} is not used here")])
    loader = _CoreLoader("")
    try:
        return loader.construct_object(node)
    finally:
        loader.dispose()


def _map(node: yaml.MappingNode, path: KeyPath, origins: dict[KeyPath, Origin], source: Origin) -> dict[str, Any]:
    result: dict[str, Any] = {}
    problems: list[tuple[int, str]] = []
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
        if key is None or key == "<<":
            problems.append((line, "only plain keys are used here; `extends:` takes the place of merge keys"))
        elif key in result:
            first = origins[(*path, key)].line
            problems.append((line, f"`{key}` is written twice (first on line {first})"))
        else:
            origins[(*path, key)] = Origin(source.name, line)
            try:
                result[key] = _value(value_node, (*path, key), origins, source)
            except _Refused as refused:
                problems.extend(refused.problems)
    if problems:
        raise _Refused(problems)
    return result


def leaves(data: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield every scalar and list of a document with its path, in order; an empty map is a leaf too."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, data
