"""Checks a profile's flags against the flag table of the pinned engine version.

SGLang's parser ends with status 2 on an unknown or retired flag, minutes after the old server was stopped; here it is
refused before. Source of the tables: recorded `--help` of each version (`ops/engine/flags/`).
"""

import difflib
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from ops.model.base import Path, Problem
from ops.model.profile import DRAFT_TP, MODELLED_FLAGS, SECRET_FLAGS, Profile

FLAG_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


def known_versions() -> list[str]:
    """Engine versions that have a flag table, sorted."""
    names = [entry.name for entry in files("ops.engine.flags").iterdir()]
    return sorted(n.removeprefix("sglang-").removesuffix(".json") for n in names if n.startswith("sglang-"))


def load_table(version: str) -> dict[str, Any]:
    """Read the flag table of one version: {"--flag": {"aliases", "takes", "type", "choices"}}."""
    text = files("ops.engine.flags").joinpath(f"sglang-{version}.json").read_text(encoding="utf-8")
    flags: dict[str, Any] = json.loads(text)["flags"]
    return flags


def flag_problems(profile: Profile, table: Mapping[str, Any]) -> list[Problem]:
    """Judge every flag and value of the profile that the engine would parse."""
    by_name = {name: entry for flag, entry in table.items() for name in (flag, *entry["aliases"])}
    problems = []
    for key, value in profile.engine.flags.items():
        flag = key.replace("_", "-").removeprefix("--")
        if flag in MODELLED_FLAGS or flag in SECRET_FLAGS or flag == "config" or DRAFT_TP.search(flag):
            continue
        at: Path = ("engine", "flags", key)
        entry = by_name.get(f"--{flag}")
        if entry is None or not FLAG_NAME.fullmatch(flag):
            near = difflib.get_close_matches(f"--{flag}", list(by_name), n=3, cutoff=0.7)
            hint = f"; did you mean {' or '.join(n.removeprefix('--') for n in near)}?" if near else ""
            problems.append(Problem(at, f"the engine pinned by stack {profile.stack} has no flag --{flag}{hint}"))
            continue
        reason = _value_reason(entry, value)
        if reason:
            problems.append(Problem(at, f"{value!r}: {reason}"))
    return problems + _modelled_problems(profile, by_name)


def _modelled_problems(profile: Profile, by_name: Mapping[str, Any]) -> list[Problem]:
    backend = profile.engine.attention_backend
    entry = by_name.get("--attention-backend", {"takes": "one", "type": "str", "choices": None})
    reason = _value_reason(entry, backend) if backend is not None else None
    problems = [Problem(("engine", "attention_backend"), f"{backend!r}: {reason}")] if reason else []
    if profile.speculation is not None and profile.speculation.adaptive and "--speculative-adaptive" not in by_name:
        problems.append(Problem(("speculation", "adaptive"), "the pinned engine has no --speculative-adaptive"))
    return problems


def _value_reason(entry: Mapping[str, Any], value: Any) -> str | None:
    takes = entry["takes"]
    if isinstance(value, bool):
        return None if not value or takes in ("none", "optional") else "the flag needs a value"
    if takes == "none":
        return "the flag takes no value: true sets it, false leaves it out"
    values = value if isinstance(value, list) else [value]
    if len(values) != 1 and takes != "many":
        return "the flag takes one value"
    if not values:
        return "an empty list; leave the key out instead"
    return next(filter(None, (_one_value_reason(entry, single) for single in values)), None)


def _one_value_reason(entry: Mapping[str, Any], value: Any) -> str | None:
    kind, choices = entry["type"], entry["choices"]
    if isinstance(value, str) and "\x00" in value:
        return "holds a zero byte"
    if choices and str(value) not in [str(choice) for choice in choices]:
        near = difflib.get_close_matches(str(value), [str(choice) for choice in choices], n=3)
        if near:
            return f"not among its choices; did you mean {' or '.join(near)}?"
        return f"not among its choices: {', '.join(map(str, choices))}"
    try:
        {"int": int, "float": float}.get(kind, str)(str(value))
    except ValueError:
        return f"must be {'a whole number' if kind == 'int' else 'a number'}"
    return None
