"""The project's own prompts, shipped with it, so that figures of different days mean the same."""

import hashlib
import importlib.resources
from collections.abc import Mapping
from functools import cache

LONG = "long"


@cache
def all_prompts() -> dict[str, str]:
    """Return name -> text of every prompt (`prose-1`, `code-1`, ...), in order of name."""
    folder = importlib.resources.files("ops.gates") / "prompts"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".txt")), key=lambda f: f.name)
    return {f.name.removesuffix(".txt"): f.read_text(encoding="utf-8").rstrip("\n") for f in files}


def short_prompts(own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the prompts for answers, agreement and acceptance, in order of name.

    Args: own: what the profile brings (`traffic.prompts`); a manifest does not keep its order.
    """
    if own:
        return dict(sorted(own.items()))
    return {name: text for name, text in all_prompts().items() if not name.startswith(LONG)}


def speed_prompts(own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the prompts that speed is measured with: one of each kind, or all that the profile brings."""
    if own:
        return short_prompts(own)
    return {name: text for name, text in short_prompts().items() if name.endswith("-1")}


def long_text(characters: int) -> str:
    """Return a text of about so many characters without exact repetition: its sections are numbered."""
    passage = all_prompts()["long-1"]
    sections: list[str] = []
    length = 0
    while length < characters:
        section = f"Parcel {len(sections) + 1}. {passage}\n\n"
        sections.append(section)
        length += len(section)
    return "".join(sections)[:characters]


def digest(*settings: object, own: Mapping[str, str] | None = None) -> str:
    """Return the digest of the prompts and of the settings that they are measured with."""
    prompts = {**all_prompts(), **(short_prompts(own) if own else {})}
    text = "\x00".join([*(f"{name}\x01{text}" for name, text in prompts.items()), *map(repr, settings)])
    return hashlib.sha256(text.encode()).hexdigest()
