"""What the engine reads of a model folder: ``config.json`` and the wiring that follows from it.

``simulation.json`` in the target's folder may set ``right_layer_ids``: the layers (in capture space) that the draft
was trained on. Capture rule and defaults: SGLang 0.5.23 srt/models/deepseek_v2.py:3458-3475, llama.py:929-941.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEEPSEEK_FAMILY = ("Deepseek", "KimiK2", "Kimi", "LongcatFlash", "BailingMoeV2")


@dataclass(frozen=True)
class Target:
    path: str
    architecture: str
    model_type: str
    layers: int
    hidden: int
    vocabulary: int
    context: int
    right_layer_ids: tuple[int, ...]

    @property
    def deepseek_family(self) -> bool:
        return self.architecture.startswith(DEEPSEEK_FAMILY)

    @property
    def multimodal(self) -> bool:
        return self.architecture.endswith("ForConditionalGeneration")


@dataclass(frozen=True)
class Draft:
    path: str
    architecture: str
    hidden: int
    target_hidden: int
    context: int
    layer_ids: tuple[int, ...] | None
    aux_layers: int


def read_config(path: str) -> dict[str, Any]:
    """Return ``config.json`` of a local model folder.

    Raises:
        OSError: with the real engine's words when there is no such folder or no configuration in it.
    """
    file = Path(path) / "config.json"
    if not file.is_file():
        raise OSError(
            f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{path}'. "
            "Use `repo_type` argument if needed."
            if not Path(path).is_dir()
            else f"{path} does not appear to have a file named config.json."
        )
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


def read_target(path: str) -> Target:
    config = read_config(path)
    text = config.get("text_config") or config
    layers = int(text.get("num_hidden_layers", 2))
    override = Path(path) / "simulation.json"
    extra = json.loads(override.read_text(encoding="utf-8")) if override.is_file() else {}
    return Target(
        path=path,
        architecture=str((config.get("architectures") or ["LlamaForCausalLM"])[0]),
        model_type=str(config.get("model_type", "llama")),
        layers=layers,
        hidden=int(text.get("hidden_size", 256)),
        vocabulary=int(text.get("vocab_size", 32000)),
        context=int(text.get("max_position_embeddings", 4096)),
        right_layer_ids=tuple(extra.get("right_layer_ids") or default_layer_ids(layers)),
    )


def read_draft(path: str) -> Draft:
    config = read_config(path)
    eagle = config.get("eagle_config")
    ids = eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, dict) else None
    hidden = int(config.get("hidden_size", 256))
    return Draft(
        path=path,
        architecture=str((config.get("architectures") or ["LlamaForCausalLMEagle3"])[0]),
        hidden=hidden,
        target_hidden=int(config.get("target_hidden_size") or hidden),
        context=int(config.get("max_position_embeddings", 2048)),
        layer_ids=tuple(int(i) for i in ids) if ids else None,
        aux_layers=int(config.get("num_aux_hidden_states") or (len(ids) if ids else 3)),
    )


def default_layer_ids(layers: int) -> tuple[int, ...]:
    return (2, layers // 2, layers - 3)


def captured_layers(target: Target, draft: Draft) -> tuple[int, ...]:
    """Return the layers whose input is really captured, in capture space; what is out of range or double is lost."""
    if draft.layer_ids is None:
        wanted = default_layer_ids(target.layers)
    elif target.deepseek_family and draft.layer_ids[0] != 1:
        wanted = draft.layer_ids
    else:
        wanted = tuple(i + 1 for i in draft.layer_ids)
    return tuple(sorted({i for i in wanted if 0 <= i < target.layers}))


def wired_right(target: Target, draft: Draft) -> bool:
    return captured_layers(target, draft) == tuple(sorted(target.right_layer_ids))


def shape_error(target: Target, draft: Draft, prompt_tokens: int) -> str | None:
    """Return the message with which the first request kills the scheduler, or None when the widths fit."""
    incoming = target.hidden * len(captured_layers(target, draft))
    expected = draft.target_hidden * draft.aux_layers
    if incoming in (expected, draft.hidden):
        return None
    return f"mat1 and mat2 shapes cannot be multiplied ({prompt_tokens}x{incoming} and {expected}x{draft.hidden})"
