"""JSON Schema of the files under `envs/`, for editors.

A file may be a variant: nothing is required, `extends` is allowed in profiles, and null removes a key.
"""

from typing import Any

from pydantic import BaseModel

from ops.model.nccl import NcclSet
from ops.model.profile import Profile
from ops.model.stack import Stack

MODELS: dict[str, type[BaseModel]] = {"profile": Profile, "stack": Stack, "nccl": NcclSet}


def file_schema(kind: str) -> dict[str, Any]:
    """Return the schema of one kind of file: profile, stack or nccl."""
    schema = MODELS[kind].model_json_schema()
    if kind == "profile":
        for part in (schema, *schema.get("$defs", {}).values()):
            part.pop("required", None)
            part["properties"] = {key: _nullable(value) for key, value in part.get("properties", {}).items()}
        extends = {"type": "string", "description": "Profile that this one is a variant of."}
        schema["properties"] = {"extends": extends, **schema["properties"]}
    else:
        schema["required"] = [key for key in schema.get("required", []) if key != "name"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _nullable(value: dict[str, Any]) -> dict[str, Any]:
    if {"type": "null"} in value.get("anyOf", []):
        return value
    kept: dict[str, Any] = {key: value[key] for key in ("description", "title", "default") if key in value}
    return {**kept, "anyOf": [{key: v for key, v in value.items() if key not in kept}, {"type": "null"}]}
