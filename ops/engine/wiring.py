"""What a draft reads of its target, compared with what the profile pins. Pure.

A draft that reads other layers serves without any error, and on some pairs accepts nearly as much (measured: 2.66
right, 2.66 wrong), so the configuration itself is compared; acceptance is only the second net.

`models` is what a host tells: {target|draft: {path, config, config_sha256, weights_sha256}}.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ops.model.profile import Profile

IDS = "eagle_aux_hidden_state_layer_ids"
_KINDS = ("config_sha256", "weights_sha256")


def roles(profile: Profile) -> tuple[str, ...]:
    """The models of a profile."""
    return ("target", "draft") if profile.speculation else ("target",)


def absent(profile: Profile, models: Mapping[str, Any]) -> list[str]:
    """Roles whose config.json could not be read."""
    return [role for role in roles(profile) if not (models.get(role) or {}).get("config")]


def problems(profile: Profile, models: Mapping[str, Any]) -> list[str]:
    """Every difference between the models on the host and the pins; both configurations must be there."""
    found = list(_target(profile, models["target"]))
    if profile.speculation:
        found += _draft(profile, models["draft"])
    return found


def captured(config: Mapping[str, Any]) -> list[int] | None:
    """Return the layer ids that the engine reads from a draft's config.json; None: it would use its own default.

    Source: SGLang 0.5.23 srt/speculative/spec_aux_hidden_state.py:183-197: only `eagle_config`, silently.
    """
    eagle = config.get("eagle_config")
    ids = eagle.get(IDS) if isinstance(eagle, dict) else None
    return list(ids) if isinstance(ids, list) and ids else None


def digests(profile: Profile, models: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests seen on the host, by the key under which they are remembered."""
    found = {}
    for role in roles(profile):
        for kind in _KINDS:
            value = (models.get(role) or {}).get(kind)
            if value:
                found[f"digest/{role}/{kind}/{models[role].get('path')}"] = str(value)
    return found


def _target(profile: Profile, seen: Mapping[str, Any]) -> Iterator[str]:
    pins, config = profile.target, seen["config"]
    text = config.get("text_config") or config
    for key, pinned in (
        ("num_hidden_layers", pins.layers),
        ("hidden_size", pins.hidden_size),
        ("vocab_size", pins.vocab_size),
    ):
        if text.get(key) != pinned:
            yield f"target {key} is {text.get(key)}, pinned {pinned}"
    yield from _digests("target", pins, seen)


def _draft(profile: Profile, seen: Mapping[str, Any]) -> Iterator[str]:
    assert profile.speculation is not None
    pins, config = profile.speculation.draft, seen["config"]
    ids = captured(config)
    if profile.speculation.algorithm == "EAGLE3":
        if ids is None:
            elsewhere = " (the ids at the top level are not read for capture)" if IDS in config else ""
            yield f"the draft's eagle_config names no layer ids, so the engine takes its own default{elsewhere}"
        elif ids != list(pins.layer_ids):
            yield f"the draft's layer ids are {ids}, pinned {list(pins.layer_ids)}"
    for key, pinned in (
        ("hidden_size", pins.hidden_size),
        ("vocab_size", pins.vocab_size),
        ("target_hidden_size", pins.target_hidden_size),
        ("draft_vocab_size", pins.draft_vocab_size),
        ("max_position_embeddings", pins.max_position_embeddings),
    ):
        if pinned is not None and config.get(key) != pinned:
            yield f"draft {key} is {config.get(key)}, pinned {pinned}"
    yield from _digests("draft", pins, seen)


def unread(profile: Profile, models: Mapping[str, Any]) -> Iterator[str]:
    """Pinned digests that the host did not tell."""
    pinned: list[tuple[str, Any]] = [("target", profile.target)]
    if profile.speculation:
        pinned.append(("draft", profile.speculation.draft))
    for role, pins in pinned:
        for kind in _KINDS:
            if getattr(pins, kind) and not models[role].get(kind):
                yield f"{role} {kind}"


def _digests(role: str, pins: Any, seen: Mapping[str, Any]) -> Iterator[str]:
    for kind in _KINDS:
        pinned, found = getattr(pins, kind), seen.get(kind)
        if pinned and found and pinned != found:
            yield f"{role} {kind} is {found[:12]}…, pinned {pinned[:12]}…"
