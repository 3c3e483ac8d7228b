"""Dimensions, tensor shapes and random weights of tiny models, under their canonical names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import gguf
import numpy as np

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
K_QUANTS = ("Q4_K", "Q5_K", "Q6_K")
# Types that the gguf package only reads: where their fp16 scales lie in a block, and the largest ones they have.
READ_ONLY = {
    "Q2_K": {80: 1.0, 82: 1.5}, "Q3_K": {108: 1.0}, "IQ4_NL": {0: 1.0}, "IQ4_XS": {0: 1.0}, "IQ3_S": {0: 1.0},
    "IQ3_XXS": {0: 1.0}, "IQ2_S": {0: 1.0}, "IQ2_XS": {0: 1.0}, "IQ2_XXS": {0: 1.0}, "IQ1_S": {0: 1.0},
}  # fmt: skip


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
    window_layers: tuple[bool, ...] | None = None  # which layers have it, in Qwen directories; None: all

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
    """Float32 weights in the half-split RoPE order of Hugging Face, scaled for logits of a few units."""
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
    """Reorder output rows of q or k from half-split to interleaved pairs, as GGUF converters do for Llama."""
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


def file_rows(kind: str, weight: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """File rows ``[outputs, bytes]``: of the weights, or random ones where the gguf package cannot write a type."""
    if kind in K_QUANTS:
        return random_k_quant(kind, weight.shape, rng)
    if kind in READ_ONLY or kind in ("IQ1_M", "NVFP4"):
        return random_read_only(kind, weight.shape, rng)
    rows: np.ndarray = gguf.quants.quantize(weight, gguf.GGMLQuantizationType[kind])
    return rows


def random_read_only(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Random bytes of a type of READ_ONLY, or IQ1_M or NVFP4, with weights of deviation 1 / sqrt(inputs)."""
    outputs, inputs = shape
    type_ = gguf.GGMLQuantizationType[kind]
    group, size = gguf.GGML_QUANT_SIZES[type_]
    blocks = rng.integers(0, 256, (outputs * inputs // group, size), dtype=np.uint8)

    def set_scales(factor: np.ndarray | float) -> None:
        for at, scale in READ_ONLY.get(kind, {}).items():
            halves = np.broadcast_to(np.float16(scale * factor), (len(blocks), 1))
            blocks[:, at : at + 2] = np.ascontiguousarray(halves).view(np.uint8)

    if kind == "NVFP4":
        blocks[:, :4] = rng.integers(12, 30, (len(blocks), 4))  # of 16 weights each, 1 / 64 to 1 / 8
    if kind == "IQ1_M":
        blocks[:, 49::2] = blocks[:, 49::2] & 15 | np.array(
            [0x00, 0x00, 0x00, 0x20], np.uint8
        )  # 2^-7 over four
    set_scales(1)
    deviation = float(gguf.quants.dequantize(blocks, type_).std())
    set_scales(rng.uniform(0.7, 1.3, (len(blocks), 1)) / deviation / math.sqrt(inputs))
    return blocks.reshape(outputs, -1)


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
