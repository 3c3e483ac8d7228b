"""Random models of a few layers, as GGUF files and as Hugging Face directories, made in a fraction of a second.

The same dimensions and seed give the same float32 weights in both formats. NumPy alone: no PyTorch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors import serialize_file

from tests.tiny_tokenizer import CHAT_TEMPLATE, SPECIALS, tiny_tokenizer, write_tokenizer

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
K_QUANTS = ("Q4_K", "Q5_K", "Q6_K")


@dataclass(frozen=True)
class TinyDims:
    """Dimensions of a tiny model. K-quants need inputs that are multiples of 256, as the defaults are."""

    arch: str = "llama"  # llama | mistral | qwen2 | qwen3
    vocab_size: int = 320
    hidden_size: int = 256
    intermediate_size: int = 512
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    max_position: int = 512
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-5
    rope_scaling: Mapping[str, Any] | None = None  # for instance LLAMA3_SCALING
    attention_bias: bool | None = None  # None: as the architecture has it
    output_bias: bool = False
    tied: bool = False
    sliding_window: int | None = None

    @property
    def bias(self) -> bool:
        return self.arch == "qwen2" if self.attention_bias is None else self.attention_bias


def tiny_dims(arch: str, **dims: Any) -> TinyDims:
    """Build dimensions; an unknown name is an error, a missing head_dim follows hidden_size."""
    unknown = dims.keys() - {field.name for field in fields(TinyDims)}
    if unknown:
        raise TypeError(f"unknown dimensions {sorted(unknown)}")
    result = TinyDims(arch=arch, **dims)
    if "head_dim" not in dims:
        result = replace(result, head_dim=result.hidden_size // result.num_heads)
    return result


def tensor_shapes(dims: TinyDims) -> dict[str, tuple[int, ...]]:
    """Canonical names and shapes (outputs, inputs) of every tensor of the model."""
    hidden, middle, head = dims.hidden_size, dims.intermediate_size, dims.head_dim
    queries, keys = dims.num_heads * head, dims.num_kv_heads * head
    shapes: dict[str, tuple[int, ...]] = {"embed": (dims.vocab_size, hidden), "final_norm": (hidden,)}
    if not dims.tied:
        shapes["output"] = (dims.vocab_size, hidden)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "q": (queries, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "o": (hidden, queries),
        "ffn_norm": (hidden,),
        "gate": (middle, hidden),
        "up": (middle, hidden),
        "down": (hidden, middle),
    }
    if dims.bias:
        layer |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
    if dims.output_bias:
        layer["o_bias"] = (hidden,)
    if dims.arch == "qwen3":
        layer |= {"q_norm": (head,), "k_norm": (head,)}
    for i in range(dims.num_layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def random_weights(dims: TinyDims, seed: int = 0) -> dict[str, np.ndarray]:
    """Float32 weights in the half-split RoPE order of Hugging Face, scaled so that logits spread over a few units."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in tensor_shapes(dims).items():
        noise = rng.standard_normal(shape, np.float32)
        if name.endswith("norm"):
            weights[name] = 1 + np.float32(0.1) * noise
        elif name.endswith("bias"):
            weights[name] = np.float32(0.2) * noise
        else:
            gain = 2.0 if name in ("embed", "output") else 1.0
            weights[name] = noise * np.float32(gain / math.sqrt(shape[-1]))
    return weights


def interleave_heads(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Reorder output rows of q or k from half-split to interleaved pairs, as converters to GGUF do for Llama."""
    halves = weight.reshape(num_heads, 2, -1, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def llama3_factors(dims: TinyDims) -> np.ndarray:
    """Per-frequency divisors of LLAMA3_SCALING-like parameters (float32, head_dim / 2)."""
    scaling = dims.rope_scaling
    assert scaling is not None
    factors = []
    for i in range(dims.head_dim // 2):
        wavelength = 2 * math.pi * dims.rope_theta ** (2 * i / dims.head_dim)
        turns = scaling["original_max_position_embeddings"] / wavelength
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, np.float32)


def random_k_quant(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Random bytes of a K-quant whose scales give weights of mean about 0 and deviation 1 / sqrt(inputs)."""
    outputs, inputs = shape
    blocks = outputs * inputs // 256
    deviation = 1 / math.sqrt(inputs)
    scales = rng.integers(20, 60, (blocks, 8), dtype=np.uint8)

    def half(value: float) -> np.ndarray:
        spread = value * rng.uniform(0.7, 1.3, (blocks, 1))
        return spread.astype(np.float16).view(np.uint8)

    def noise(count: int) -> np.ndarray:
        return rng.integers(0, 256, (blocks, count), dtype=np.uint8)

    if kind == "Q6_K":
        signed = scales.repeat(2, axis=1).astype(np.int8) * rng.choice(
            np.array([-1, 1], np.int8), (blocks, 16)
        )
        parts = [noise(128), noise(64), signed.view(np.uint8), half(deviation / (18.5 * 40))]
    else:
        levels = {"Q4_K": 16, "Q5_K": 32}[kind]
        d = deviation / (levels * 0.29 * 40)
        minima = scales + rng.integers(0, 4, (blocks, 8), dtype=np.uint8)
        low = (scales[:, :4] & 63) | (scales[:, 4:] >> 4 << 6)
        middle = (minima[:, :4] & 63) | (minima[:, 4:] >> 4 << 6)
        high = (scales[:, 4:] & 15) | ((minima[:, 4:] & 15) << 4)
        bits = noise(128) if kind == "Q4_K" else noise(160)
        parts = [half(d), half(d * (levels - 1) / 2), low, middle, high, bits]
    return np.concatenate(parts, axis=1).reshape(outputs, -1)


def make_gguf(
    path: Path | str,
    arch: str = "llama",
    types: str | Mapping[str, str] = "F32",
    seed: int = 0,
    **dims: Any,
) -> TinyDims:
    """Write a GGUF file; return its dimensions.

    ``types``: one ggml type name for all matrices, or a mapping from canonical names (``layers.0.q``), last parts
    (``down``) or ``default`` to types. Norms and biases are F32. K-quants get random bytes, other types the
    rounded weights of ``random_weights``.
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
        writer.add_tensor(gguf_name(name), *_encoded(weight, kind, rng))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tiny


def _encoded(weight: np.ndarray, kind: str, rng: np.random.Generator) -> tuple[np.ndarray, None, Any]:
    if kind in K_QUANTS:
        data = random_k_quant(kind, weight.shape, rng)
    else:
        data = gguf.quants.quantize(weight, gguf.GGMLQuantizationType[kind])
    return data, None, gguf.GGMLQuantizationType[kind]


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
        tensors[hf_name(name)] = {"dtype": dtype, "shape": list(weight.shape), "data": encoded.tobytes()}
    if shards == 1:
        serialize_file(tensors, str(directory / "model.safetensors"), {"format": "pt"})
        return tiny
    names = sorted(tensors)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        serialize_file(part, str(directory / file), {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(len(tensor["data"]) for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return tiny


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
    return config
