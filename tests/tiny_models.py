"""Random models of a few layers, as GGUF files and as Hugging Face directories, made in a moment.

The same dimensions and seed give the same float32 weights in both formats. NumPy alone: no PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.tiny_tokenizer import CHAT_TEMPLATE, SPECIALS, tiny_tokenizer, write_tokenizer
from tests.tiny_weights import (
    LLAMA3_SCALING,
    TinyDims,
    file_rows,
    interleave_heads,
    llama3_factors,
    random_weights,
    tensor_shapes,
    tiny_dims,
)

__all__ = [
    "LLAMA3_SCALING",
    "TinyDims",
    "gguf_name",
    "hf_config",
    "hf_name",
    "make_gguf",
    "make_hf_dir",
    "random_weights",
    "tensor_shapes",
    "tiny_dims",
    "write_safetensors",
]


def make_gguf(
    path: Path | str,
    arch: str = "llama",
    types: str | Mapping[str, str] = "F32",
    seed: int = 0,
    **dims: Any,
) -> TinyDims:
    """Write a GGUF file; return its dimensions.

    ``types``: one ggml type name for all matrices, or a mapping from canonical names (``layers.0.q``), last
    parts (``down``) or ``default`` to types. Norms and biases are F32. K-quants and types that the gguf package
    cannot write get random bytes, others the rounded weights of ``random_weights``.
    """
    tiny = tiny_dims(arch, **dims)
    file_arch = "llama" if arch == "mistral" else arch
    writer = gguf.GGUFWriter(path, file_arch)
    writer.add_name(f"tiny-{arch}")
    writer.add_block_count(tiny.num_layers)
    writer.add_context_length(tiny.max_position)
    writer.add_embedding_length(tiny.hidden_size)
    writer.add_feed_forward_length(tiny.intermediate_size)
    writer.add_head_count(tiny.num_heads)
    writer.add_head_count_kv(tiny.num_kv_heads)
    writer.add_key_length(tiny.head_dim)
    writer.add_value_length(tiny.head_dim)
    writer.add_rope_dimension_count(tiny.head_dim)
    writer.add_rope_freq_base(tiny.rope_theta)
    writer.add_layer_norm_rms_eps(tiny.norm_epsilon)
    writer.add_vocab_size(tiny.vocab_size)
    if tiny.sliding_window is not None:
        writer.add_sliding_window(tiny.sliding_window)
    _add_tokenizer(writer, tiny)
    if tiny.rope_scaling is not None:
        writer.add_tensor("rope_freqs.weight", llama3_factors(tiny))
    rng = np.random.default_rng(seed + 1)
    for name, weight in random_weights(tiny, seed).items():
        last = name.rpartition(".")[2]
        if file_arch == "llama" and last in ("q", "k", "q_bias", "k_bias"):
            weight = interleave_heads(weight, tiny.num_heads if last[0] == "q" else tiny.num_kv_heads)
        kind = "F32"
        if weight.ndim == 2:
            kind = (
                types
                if isinstance(types, str)
                else types.get(name, types.get(last, types.get("default", "F32")))
            )
        writer.add_tensor(
            gguf_name(name), file_rows(kind, weight, rng), raw_dtype=gguf.GGMLQuantizationType[kind]
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tiny


def gguf_name(name: str) -> str:
    """Name of a canonical tensor in a GGUF file."""
    top = {"embed": "token_embd.weight", "output": "output.weight", "final_norm": "output_norm.weight"}
    if name in top:
        return top[name]
    _, layer, last = name.split(".")
    stem, _, kind = last.partition("_")
    if last in ("gate", "up", "down", "ffn_norm"):
        return f"blk.{layer}.{last if last == 'ffn_norm' else 'ffn_' + last}.weight"
    if last == "attn_norm":
        return f"blk.{layer}.attn_norm.weight"
    stem = "output" if stem == "o" else stem
    return f"blk.{layer}.attn_{stem}" + {"": ".weight", "bias": ".bias", "norm": "_norm.weight"}[kind]


def _add_tokenizer(writer: gguf.GGUFWriter, dims: TinyDims) -> None:
    tiny = tiny_tokenizer()
    unused = dims.vocab_size - len(tiny.tokens)
    if unused < 0:
        raise ValueError(f"vocab_size {dims.vocab_size} is smaller than the {len(tiny.tokens)} tokens")
    normal = len(tiny.tokens) - len(SPECIALS)
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*tiny.tokens, *(f"[PAD{len(tiny.tokens) + i}]" for i in range(unused))])
    writer.add_token_types(
        [kinds.NORMAL] * normal
        + [kinds.CONTROL] * len(SPECIALS)
        + [kinds.UNUSED] * unused  # same order as above
    )
    writer.add_token_merges(list(tiny.merges))
    writer.add_eos_token_id(tiny.id("<|im_end|>"))
    writer.add_pad_token_id(tiny.id("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def make_hf_dir(
    path: Path | str,
    arch: str = "llama",
    dtype: str = "float32",
    seed: int = 0,
    shards: int = 1,
    rope_parameters: bool = False,
    **dims: Any,
) -> TinyDims:
    """Write config.json, the tokenizer's files and safetensors; return the dimensions.

    ``dtype``: float32, float16 or bfloat16. ``rope_parameters``: spell RoPE as newer transformers do.
    """
    tiny = tiny_dims(arch, **dims)
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    write_tokenizer(directory, tiny.max_position)
    (directory / "config.json").write_text(json.dumps(hf_config(tiny, dtype, rope_parameters), indent=2))
    tensors = {}
    for name, weight in random_weights(tiny, seed).items():
        encoded = to_bfloat16(weight) if dtype == "bfloat16" else weight.astype(dtype)
        tensors[hf_name(name)] = encoded
    if shards == 1:
        write_safetensors(directory / "model.safetensors", tensors)
        return tiny
    names = sorted(tensors)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        write_safetensors(directory / file, part)
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return tiny


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write one safetensors file; arrays of uint16 are taken as bfloat16."""
    names = {"float32": "F32", "float16": "F16", "uint16": "BF16", "int64": "I64"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, array in tensors.items():
        span = [offset, offset + array.nbytes]
        header[name] = {"dtype": names[array.dtype.name], "shape": list(array.shape), "data_offsets": span}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(array.tobytes() for array in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def to_bfloat16(weight: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16 (nearest, ties to even), as uint16 bit patterns."""
    bits = weight.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def hf_name(name: str) -> str:
    """Name of a canonical tensor in a Hugging Face checkpoint."""
    top = {
        "embed": "model.embed_tokens.weight",
        "output": "lm_head.weight",
        "final_norm": "model.norm.weight",
        "attn_norm": "input_layernorm.weight",
        "ffn_norm": "post_attention_layernorm.weight",
    }
    if name in top:
        return top[name]
    _, layer, last = name.split(".")
    prefix = f"model.layers.{layer}."
    if last in top:
        return prefix + top[last]
    if last in ("gate", "up", "down"):
        return f"{prefix}mlp.{last}_proj.weight"
    stem, _, kind = last.partition("_")
    return (
        f"{prefix}self_attn.{stem}" + {"": "_proj.weight", "bias": "_proj.bias", "norm": "_norm.weight"}[kind]
    )


def hf_config(dims: TinyDims, dtype: str = "float32", rope_parameters: bool = False) -> dict[str, Any]:
    """The config.json of a tiny model."""
    class_name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[dims.arch]
    tokenizer = tiny_tokenizer()
    config: dict[str, Any] = {
        "architectures": [f"{class_name}ForCausalLM"],
        "model_type": dims.arch,
        "vocab_size": dims.vocab_size,
        "hidden_size": dims.hidden_size,
        "intermediate_size": dims.intermediate_size,
        "num_hidden_layers": dims.num_layers,
        "num_attention_heads": dims.num_heads,
        "num_key_value_heads": dims.num_kv_heads,
        "head_dim": dims.head_dim,
        "max_position_embeddings": dims.max_position,
        "rms_norm_eps": dims.norm_epsilon,
        "hidden_act": "silu",
        "tie_word_embeddings": dims.tied,
        "bos_token_id": None,
        "eos_token_id": tokenizer.id("<|im_end|>"),
        "torch_dtype": dtype,
    }
    scaling = dict(dims.rope_scaling) if dims.rope_scaling is not None else None
    if rope_parameters:
        config["rope_parameters"] = (
            {"rope_type": "default"} | (scaling or {}) | {"rope_theta": dims.rope_theta}
        )
    else:
        config |= {"rope_theta": dims.rope_theta, "rope_scaling": scaling}
    if dims.arch in ("llama", "qwen3"):
        config["attention_bias"] = dims.bias
    if dims.sliding_window is not None or dims.arch == "mistral":
        config["sliding_window"] = dims.sliding_window
        config["use_sliding_window"] = dims.sliding_window is not None
        if dims.arch.startswith("qwen"):
            config["max_window_layers"] = 0
            if dims.window_layers is not None:
                kinds = {True: "sliding_attention", False: "full_attention"}
                config["layer_types"] = [kinds[slides] for slides in dims.window_layers]
    return config
