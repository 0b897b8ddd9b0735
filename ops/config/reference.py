"""The table of profile keys in docs/profiles.md, written from the model's own descriptions.

python -m ops.config.reference docs/profiles.md
"""

import json
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ops.config.problems import model_at
from ops.model.profile import Profile

BEGIN, END = "<!-- keys: begin -->", "<!-- keys: end -->"


def main(argv: list[str]) -> int:
    """Write the table anew into the file named on the command line."""
    (name,) = argv
    file = Path(name)
    file.write_text(with_table(file.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def with_table(text: str) -> str:
    """Replace what stands between the two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{key_table()}{END}{after}"


def key_table() -> str:
    """All keys of a profile as a Markdown table."""
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, field in _keys(Profile, ()):
        default = _default(field)
        description = (field.description or "").replace("|", "\\|")
        rows.append(f"| `{key}` | {_type(field.annotation)} | {default} | {description} |")
    return "\n".join(rows) + "\n"


def _keys(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        yield ".".join((*path, name)), field
        inner = model_at(model, (name,))
        if inner is not None:
            yield from _keys(inner, (*path, name))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined or isinstance(value, BaseModel):
        return ""
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin in (types.UnionType, typing.Union):
        return " or ".join(dict.fromkeys(_type(part) for part in arguments))
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin is dict:
        return f"map of {_type(arguments[1])}"
    if origin in (tuple, list):
        return f"list of {_type(arguments[0])}"
    names = {str: "text", int: "integer", float: "number", bool: "true/false", type(None): "null"}
    return names.get(annotation, "group")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
