"""What a draft reads of its target, compared with what the profile pins. Pure.

A draft that reads other layers serves without any error, and on some pairs accepts nearly as much (measured: 2.66
right, 2.66 wrong), so the configuration itself is compared; acceptance is only the second net.

`models` is what a host tells: {target|draft: {path, config, config_sha256, weights_sha256}}.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ops.model.profile import Profile

IDS = "eagle_aux_hidden_state_layer_ids"
_OUTPUT_OF = frozenset(
    {
        *("LlamaForCausalLM", "Phi3ForCausalLM", "InternLM3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"),
        *("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM"),
    }
)
_OUTPUT_OF_FROM_1 = frozenset({"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration"})
"""Targets of which the engine reads, for layer id i, what ENTERS layer i + 1: always, or where the first id is 1. After
the last layer there is none, so its output is never captured, and the engine dies, at its first request at the latest.

Source: SGLang 0.5.23 set_eagle3_layers_to_capture in srt/models/llama.py:929, qwen2.py:781, qwen3.py:778,
qwen2_moe.py:1418, qwen3_moe.py:1128, qwen3_next.py:1286, deepseek_v2.py:3458, kimi_k25.py:928; recording
crash_layer_out_of_range.log.
"""
_LENGTHS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
"""Keys of a model's own context, the first one found. Source: SGLang 0.5.23 srt/utils/hf_transformers/common.py:668."""
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
        found += _pair(profile, models["target"]["config"], models["draft"]["config"])
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
    text = _text(config)
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


def _pair(profile: Profile, target: Mapping[str, Any], draft: Mapping[str, Any]) -> Iterator[str]:
    """What fits neither model's pins nor breaks them, but ends the engine: known only from both configurations."""
    spec = profile.speculation
    assert spec is not None
    ids, last = list(spec.draft.layer_ids), profile.target.layers - 1
    architecture = next(iter(target.get("architectures") or ()), None)
    shifted = architecture in _OUTPUT_OF or (architecture in _OUTPUT_OF_FROM_1 and ids[:1] == [1])
    if spec.algorithm == "EAGLE3" and shifted and last in ids:
        yield (
            f"layer id {last} is the last layer of a {architecture}: the engine reads id + 1 there, so it is never "
            f"captured and the first request ends the engine (layer ids {ids})"
        )
    overridden = profile.engine.flag("json-model-override-args") is not None
    wanted, longest = profile.engine.context_length or context(target), context(draft)
    if wanted and longest and wanted > longest and not overridden and not profile.longer_context_allowed:
        whose = "engine.context_length" if profile.engine.context_length else "the target's own context"
        yield (
            f"{whose} {wanted} is beyond the draft's {longest}, which SGLang refuses to load (model_config.py:1296): "
            "set engine.context_length, or env.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN to 1"
        )


def context(config: Mapping[str, Any]) -> int | None:
    """Return the context that the engine derives from a model's config.json; None: that cannot be told from here.

    A scaling factor counts or not by the version of transformers, unless the length before scaling is named.
    Source: SGLang 0.5.23 srt/utils/hf_transformers/common.py:677-694.
    """
    text = _text(config)
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    if scaling.get("factor", 1) != 1 and "original_max_position_embeddings" not in scaling:
        return None
    length = next((text[key] for key in _LENGTHS if text.get(key) is not None), None)
    return length if isinstance(length, int) else None


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = config.get("text_config") or config
    return found


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
