"""The tiny model folders of a sandbox: configurations like Kimi-K2.5's and its EAGLE-3 draft's, a few bytes of weights.

Byte-deterministic, so that a profile can pin their digests. Nothing loads these weights; they are valid safetensors
files of one small tensor, so that tools which read headers work.
"""

import json
import struct
from pathlib import Path
from typing import Any

from ops.sandbox.layout import Layout

TARGET_LAYERS = 61
HIDDEN_SIZE = 7168
VOCABULARY = 163840
AUX_LAYER_IDS = [2, 30, 58]
"""Source: SGLang 0.5.23 models/deepseek_v2.py:3466-3475: ids are used as given unless the first one is 1."""

_TEXT: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": TARGET_LAYERS,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.827,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-05,
    "rope_theta": 50000.0,
    "vocab_size": VOCABULARY,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group", "symmetric": True},
            }
        },
    },
}

TARGET_CONFIG: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "bos_token_id": 163584,
    "eos_token_id": 163586,
    "pad_token_id": 163839,
    "torch_dtype": "bfloat16",
    "text_config": _TEXT,
}

DRAFT_CONFIG: dict[str, Any] = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "kimi_k2",
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 18432,
    "num_hidden_layers": 1,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    # Shorter than the target's: the reason for SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN in the story's profiles.
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "rope_theta": 50000.0,
    "vocab_size": VOCABULARY,
    "draft_vocab_size": VOCABULARY,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": AUX_LAYER_IDS, "use_aux_hidden_state": True},
}


def config_bytes(config: dict[str, Any]) -> bytes:
    return (json.dumps(config, indent=2) + "\n").encode()


def weights_bytes(tensor: str, fill: int) -> bytes:
    """A safetensors file with one bfloat16 tensor of 64 values. Source: the format's README."""
    data = bytes([fill]) * 128
    header = json.dumps({tensor: {"dtype": "BF16", "shape": [8, 8], "data_offsets": [0, len(data)]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def model_files() -> dict[str, dict[str, bytes]]:
    """File contents by model: {"target": {name: bytes}, "draft": {...}}."""
    return {
        "target": {
            "config.json": config_bytes(TARGET_CONFIG),
            "model.safetensors": weights_bytes("language_model.model.norm.weight", 0x3F),
        },
        "draft": {
            "config.json": config_bytes(DRAFT_CONFIG),
            "model.safetensors": weights_bytes("midlayer.self_attn.o_proj.weight", 0x3E),
        },
    }


def write_models(layout: Layout) -> None:
    """Lay the folders down; a file that is there is left as it is (tests and faults change them on purpose)."""
    files = model_files()
    for folder, model in ((layout.target, files["target"]), (layout.draft, files["draft"])):
        _write_missing(folder, model)


def restore_models(layout: Layout) -> None:
    """Put every file of both folders back as `up` wrote it."""
    files = model_files()
    for folder, model in ((layout.target, files["target"]), (layout.draft, files["draft"])):
        for name, content in model.items():
            path = folder / name
            if not path.is_file() or path.read_bytes() != content:
                path.write_bytes(content)


def _write_missing(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if not (folder / name).exists():
            (folder / name).write_bytes(content)
