"""Tiny random models of every architecture, made by transformers: saved as directories, converted to GGUF files.

The conversion uses gguf-py's own names of tensors and keys, as llama.cpp's converter does.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from tests.tiny_tokenizer import write_tokenizer
from tests.tiny_weights import interleave_heads

VOCAB = 331
# Neither the widths nor the vocabulary are multiples of the 16 lanes of the kernels.
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_SHORT, _LONG = [1.0, 1.1, 1.3, 1.5], [1.0, 2.0, 4.0, 8.0]
_EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LONGROPE = {"rope_type": "longrope", "short_factor": _SHORT, "long_factor": _LONG, "rope_theta": 500.0}


def _longrope(original: int) -> dict[str, Any]:
    parameters = _LONGROPE | {"original_max_position_embeddings": original, "partial_rotary_factor": 0.8}
    return {"rope_parameters": parameters, "original_max_position_embeddings": original}


_LOCAL_AND_SCALED = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
_YARN_BESIDE_WINDOWS = {
    "full_attention": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.2,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "rope_theta": 500.0,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    # Class of the configuration, architecture in GGUF, changes to COMMON.
    "gemma3": (
        "Gemma3Text",
        "gemma3",
        {
            "head_dim": 20,
            "num_hidden_layers": 7,
            "sliding_window": 9,
            "query_pre_attn_scalar": 20,
            "rope_parameters": _LOCAL_AND_SCALED,
        },
    ),
    "gemma2": (
        "Gemma2",
        "gemma2",
        {
            "head_dim": 12,
            "sliding_window": 11,
            "query_pre_attn_scalar": 12,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "phi3": ("Phi3", "phi3", {"sliding_window": None}),
    "phi3-window": ("Phi3", "phi3", {"sliding_window": 13}),
    "phi4-mini-short": ("Phi3", "phi3", {"tie_word_embeddings": True} | _longrope(128)),
    "phi4-mini-long": ("Phi3", "phi3", _longrope(32)),
    "granite": (
        "Granite",
        "granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.5,
        },
    ),
    "smollm3": ("SmolLM3", "smollm3", {"num_hidden_layers": 5}),
    "olmo2": ("Olmo2", "olmo2", {}),
    "olmo3": (
        "Olmo3",
        "olmo2",
        {"num_hidden_layers": 5, "sliding_window": 9, "rope_parameters": _YARN_BESIDE_WINDOWS},
    ),
    "falcon3": ("Llama", "llama", {"head_dim": 22}),
    "mistral-nemo": ("Mistral", "llama", {"head_dim": 24, "sliding_window": None}),
    "qwen2-moe": ("Qwen2Moe", "qwen2moe", _EXPERTS | {"shared_expert_intermediate_size": 40}),
    "qwen3-moe": ("Qwen3Moe", "qwen3moe", _EXPERTS | {"head_dim": 20, "norm_topk_prob": True}),
}
HF_ONLY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gemma3-other-scale": (
        "Gemma3Text",
        "",
        {
            "head_dim": 20,
            "sliding_window": 9,
            "query_pre_attn_scalar": 168,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
        },
    ),
    "qwen3-moe-raw-chances": ("Qwen3Moe", "", _EXPERTS | {"head_dim": 20, "norm_topk_prob": False}),
    "dynamic-rope": (
        "Llama",
        "",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 500.0}},
    ),
}


def save_model(directory: Path, name: str, **sizes: int) -> Any:
    """Make the model with random weights everywhere (norms and biases too), save it, return it."""
    import torch
    import transformers

    family, _, changes = (MODELS | HF_ONLY)[name]
    torch.manual_seed(len(name))
    config = getattr(transformers, f"{family}Config")(**COMMON | changes | sizes)
    model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # A router has zeros at first.
            if parameter.ndim == 1 or float(parameter.abs().max()) == 0:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(directory, safe_serialization=True)
    write_tokenizer(directory, 256)
    return model


_VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
WHOLES = {"gemma3": ("Gemma3", {"mm_tokens_per_image": 4}), "mistral-nemo": ("Mistral3", {})}
"""Models with images whose text part is one of MODELS."""


def save_whole(directory: Path, name: str) -> Any:
    """Make a model that reads images too, with random weights, save it, return it."""
    import torch
    import transformers

    family, more = WHOLES[name]
    text_class, _, changes = MODELS[name]
    torch.manual_seed(len(name))
    config = getattr(transformers, f"{family}Config")(
        text_config=getattr(transformers, f"{text_class}Config")(**COMMON | changes),
        vision_config=_VISION,
        image_token_index=3,
        **more,
    )
    config.tie_word_embeddings = config.text_config.tie_word_embeddings
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for parameter in model.model.language_model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(directory, safe_serialization=True)
    write_tokenizer(directory, 256)
    return model


def hf_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    """Logits of every position ``[length, vocab_size]`` in float32."""
    import torch

    with torch.no_grad():
        return model(torch.tensor(ids[None].astype(np.int64))).logits[0].numpy()


def convert(directory: Path, path: Path, arch: str, quant: str = "F32") -> None:
    """Write a saved model as a GGUF file, with matrices of one type."""
    config = json.loads((directory / "config.json").read_text())
    tensors = load_file(directory / "model.safetensors")
    writer = gguf.GGUFWriter(path, arch)
    _add_keys(writer, arch, config)
    kind = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == arch)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    experts: dict[str, list[np.ndarray]] = {}
    for name, value in sorted(tensors.items(), key=lambda item: _numbers(item[0])):
        if "norm" in name and arch.startswith("gemma"):
            value = value + np.float32(1)
        if arch in ("llama", "granite", "smollm3") and (match := re.search(r"\.([qk])_proj\.", name)):
            key = "num_attention_heads" if match[1] == "q" else "num_key_value_heads"
            value = interleave_heads(value, config[key])
        if (match := re.fullmatch(r"(.+\.mlp\.experts)\.\d+(\.\w+_proj\.weight)", name)) is not None:
            experts.setdefault(match[1] + match[2], []).append(value)
            continue
        _add_tensor(writer, names, name, value[0] if "shared_expert_gate" in name else value, quant)
    for name, parts in experts.items():
        _add_tensor(writer, names, name, np.stack(parts), quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _numbers(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _add_tensor(writer: gguf.GGUFWriter, names: Any, name: str, value: np.ndarray, quant: str) -> None:
    new = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert new is not None, name
    kind = gguf.GGMLQuantizationType["F32" if value.ndim == 1 or "ffn_gate_inp" in new else quant]
    writer.add_tensor(new, gguf.quants.quantize(np.ascontiguousarray(value), kind), raw_dtype=kind)


def _add_keys(writer: gguf.GGUFWriter, arch: str, config: dict[str, Any]) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    if "full_attention" in rope:
        if arch.startswith("gemma"):
            writer.add_float32(f"{arch}.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_attn_factors(rope["attention_factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "longrope":
        original = rope["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        scale = config["max_position_embeddings"] / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
        for kind in ("short", "long"):
            factors = np.array(rope[f"{kind}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)
    if arch == "phi3":
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
        writer.add_sliding_window(config["sliding_window"] or 0)
    if arch.startswith("gemma") or config["model_type"] == "olmo3":
        writer.add_sliding_window(config["sliding_window"])
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if arch == "granite":
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if arch.endswith("moe"):
        writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if arch == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
