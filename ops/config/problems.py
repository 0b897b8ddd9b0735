"""From pydantic's errors to sentences with file, line, key, value, and the key that was probably meant."""

import difflib
import types
import typing
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ops.config.source import Tree
from ops.errors import ConfigError
from ops.model.base import Path, Problem, RulesBroken, dotted
from ops.model.profile import DRAFT_TP, DRAFT_TP_REASON, Profile

UNION_TAGS = {"bool", "int", "float", "str"}


def near(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean a or b?`, or nothing when no known name is near."""
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(matches)}?" if matches else ""


def refuse(what: str, problems: Iterable[Problem], tree: Tree, hint: str = "") -> ConfigError:
    """Build the error that lists every problem, each with where it was written."""
    lines = []
    for problem in problems:
        key = dotted(problem.path)
        lines.append(f"  {tree.origin(problem.path) or what}: {key + ': ' if key else ''}{problem.message}")
    lines = list(dict.fromkeys(lines))
    count = "one mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
    return ConfigError("\n".join([f"{what}: {count}", *lines]), hint=hint)


def problems_of(error: ValidationError, model: type[BaseModel], data: dict[str, Any]) -> list[Problem]:
    """Translate every error of a validation."""
    found: dict[Path, Problem] = {}
    rules: list[Problem] = []
    for detail in error.errors():
        broken = detail.get("ctx", {}).get("error")
        path = _document_path(detail["loc"], data)
        if isinstance(broken, RulesBroken):
            rules.extend(Problem((*path, *p.path), p.message) for p in broken.problems)
        elif path not in found:
            found[path] = Problem(path, _sentence(detail, path, model, data))
    return [*found.values(), *rules]


def _document_path(loc: tuple[str | int, ...], data: Any) -> Path:
    """Cut what pydantic adds to a location (union members, `[key]`) and a document does not have."""
    path: list[str | int] = []
    for position, part in enumerate(loc):
        inside = (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        )
        last = position == len(loc) - 1
        if not inside and (part == "[key]" or not last or part in UNION_TAGS or not isinstance(data, dict)):
            break
        path.append(part)
        data = data[part] if inside else None
    return tuple(path)


def _sentence(detail: ErrorDetails, path: Path, model: type[BaseModel], data: dict[str, Any]) -> str:
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        if DRAFT_TP.search(dotted(path)):
            return DRAFT_TP_REASON
        owner = model_at(model, path[:-1]) or model
        known = [*owner.model_fields, *(["extends"] if owner is Profile else [])]
        return f"unknown key (value {shown(value)}){near(str(path[-1]), known)}"
    if kind == "missing":
        owner = model_at(model, path[:-1]) or model
        field = owner.model_fields.get(str(path[-1]))
        return f"is required and not set: {field.description if field else ''}".rstrip(": ")
    if path[:2] == ("engine", "flags") and len(path) >= 3:
        return f"{shown(value)}: a flag's value is true or false, a number, text, or a list of numbers and text"
    if kind == "string_type":
        return f"{shown(value)}: text is expected; write it in quotes"
    message = detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{shown(value)}: must be {message}" if detail["msg"].startswith("Input") else f"{shown(value)}: {message}"


def shown(value: Any) -> str:
    """A value as it is repeated in a message: short, on one line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def model_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """Return the model that holds the keys below `path`, or None where there is a plain map or list."""
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None:
            return None
        inner = next(filter(None, map(_as_model, _members(field.annotation))), None)
        if inner is None:
            return None
        model = inner
    return model


def _members(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return typing.get_args(annotation)
    return (annotation,)


def _as_model(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
