"""Tensors as they lie in a file: type, shape, raw bytes; and which ones a decoder must have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from sonoran.errors import ModelError
from sonoran.models.config import ModelConfig
from sonoran.types import FloatArray

FLOAT_TYPES = ("F32", "F16", "BF16")
# Types that are kept as they are, every weight exactly, and the bits of their codes.
KEPT_BITS = {
    "F32": 32, "F16": 16, "BF16": 16, "Q8_0": 8, "Q6_K": 6, "Q5_0": 5, "Q5_1": 5, "Q5_K": 5,
    "Q4_0": 4, "Q4_1": 4, "Q4_K": 4, "IQ4_NL": 4, "IQ4_XS": 4, "MXFP4": 4, "Q3_K": 3, "Q2_K": 2,
}  # fmt: skip
# Types that become another one when a model is loaded: Q2_K has all values of the ternary ones, of the others
# Q8_0 is the nearest.
CONVERTED_TYPES = {
    "IQ3_S": "Q8_0", "IQ3_XXS": "Q8_0", "IQ2_S": "Q8_0", "IQ2_XS": "Q8_0", "IQ2_XXS": "Q8_0",
    "IQ1_M": "Q8_0", "IQ1_S": "Q8_0", "NVFP4": "Q8_0", "TQ1_0": "Q2_K", "TQ2_0": "Q2_K",
}  # fmt: skip
MATRIX_TYPES = (*KEPT_BITS, *CONVERTED_TYPES)
VECTOR_NAMES = ("attn_norm", "ffn_norm", "q_norm", "k_norm", "q_bias", "k_bias", "v_bias", "o_bias")
MATRIX_NAMES = ("q", "k", "v", "o", "gate", "up", "down")
CONVERTED_AT_ONCE = 1 << 22  # values
LARGEST_INT = 2**31 - 1  # dimensions are 32-bit integers in the kernels
LAYER_NAMES = (*VECTOR_NAMES, *MATRIX_NAMES)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of an open model file.

    ``name`` is canonical: ``embed``, ``output`` (absent when tied to ``embed``), ``final_norm``, and
    ``layers.{i}.`` followed by one of LAYER_NAMES. ``shape`` is (outputs, inputs), or (length,) for a vector.
    """

    name: str
    dtype: str  # one of MATRIX_TYPES; vectors only FLOAT_TYPES
    shape: tuple[int, ...]
    data: NDArray[np.uint8]  # [nbytes] read-only view of the mapped file, rows one after another
    source: str  # name in the file, for messages

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)


def block_layout(dtype: str) -> tuple[int, int]:
    """Elements and bytes of one block of a ggml type."""
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[dtype]]
    return int(elements), int(size)


def byte_size(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor; ModelError when a row is not a whole number of blocks."""
    elements, size = block_layout(dtype)
    if not shape or shape[-1] % elements:
        raise ModelError(
            f"{dtype} comes in blocks of {elements} elements, which do not divide rows of {shape}"
        )
    count = 1
    for extent in shape:
        count *= extent
    return count // elements * size


def dequantize(tensor: TensorInfo) -> FloatArray:
    """The exact float32 values of a tensor, a new array in its shape; for vectors, conversions and tests."""
    rows = tensor.data.reshape(*tensor.shape[:-1], -1)
    return _values(rows, tensor.dtype).reshape(tensor.shape)


def _values(rows: NDArray[np.uint8], dtype: str) -> FloatArray:
    from gguf import quants

    values: NDArray[Any] = quants.dequantize(rows, GGMLQuantizationType[dtype])
    return np.array(values, np.float32)


def kept_rows(tensor: TensorInfo) -> tuple[str, NDArray[np.uint8]]:
    """The type in which a matrix is kept, one of KEPT_BITS, and its rows in that type, ``[bytes]``.

    A converted type is decoded and rounded a piece at a time, so that of the floats only a piece is in memory.
    """
    if tensor.dtype in KEPT_BITS:
        return tensor.dtype, np.ascontiguousarray(tensor.data).reshape(-1)
    kept = CONVERTED_TYPES[tensor.dtype]
    width = tensor.shape[-1]
    rows = tensor.data.reshape(tensor.nbytes // byte_size(tensor.dtype, (width,)), -1)
    out = np.empty((len(rows), byte_size(kept, (width,))), np.uint8)
    step = max(1, CONVERTED_AT_ONCE // width)
    for begin in range(0, len(rows), step):
        piece = rows[begin : begin + step]
        values = _values(piece, tensor.dtype)
        if kept == "Q2_K":
            out[begin : begin + step] = _ternary_rows(piece, values)
        else:
            out[begin : begin + step] = _rounded_rows(values, kept)
    return kept, out.reshape(-1)


def _rounded_rows(values: FloatArray, dtype: str) -> NDArray[np.uint8]:
    from gguf import quants

    rows: NDArray[np.uint8] = quants.quantize(values, GGMLQuantizationType[dtype])
    return rows


def _ternary_rows(rows: NDArray[np.uint8], values: FloatArray) -> NDArray[np.uint8]:
    """Q2_K rows ``[n, bytes]`` of ternary rows and their values, exactly: a code q of it stands for d q - d."""
    blocks = values.reshape(-1, 256)
    half = np.ascontiguousarray(rows.reshape(len(blocks), -1)[:, -2:])  # the fp16 scale d ends a block
    scale = half.view(np.float16).astype(np.float32)
    codes = np.rint(blocks / np.where(scale == 0, 1, scale) + 1).astype(np.uint8)
    parts = codes.reshape(-1, 2, 4, 32)  # two halves of four times 32
    packed = (parts << np.array([0, 2, 4, 6], np.uint8)[:, None]).sum(2, dtype=np.uint8).reshape(-1, 64)
    sub_scales = np.full((len(blocks), 16), 0x11, np.uint8)  # both of 16 inputs are one
    return np.concatenate([sub_scales, packed, half, half], axis=1).reshape(len(values), -1)


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name and shape of every tensor that a decoder of this configuration has."""
    hidden, middle = config.hidden_size, config.intermediate_size
    queries = config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
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
    if config.attention_bias:
        layer |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
    if config.output_bias:
        layer |= {"o_bias": (hidden,)}
    if config.qk_norm:
        layer |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, hidden), "final_norm": (hidden,)}
    if not config.tied_embeddings:
        shapes["output"] = (config.vocab_size, hidden)
    for i in range(config.num_layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def check_tensors(where: str, config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> None:
    """Compare a file's tensors with what the configuration needs; ModelError names the first difference."""
    if config.num_layers > len(tensors):
        raise ModelError(
            f"{where}: describes {config.num_layers} layers, but holds only {len(tensors)} tensors; "
            "the file is incomplete"
        )
    shapes = expected_shapes(config)
    missing = [name for name in shapes if name not in tensors]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"{where}: tensor {missing[0]}{more} is missing; the file is incomplete")
    for name, tensor in tensors.items():
        if name not in shapes:
            raise ModelError(
                f"{where}: tensor {tensor.source} ({name}) has no place in a {config.architecture} of "
                f"{config.num_layers} layers as the file describes it"
            )
        if tensor.shape != shapes[name]:
            raise ModelError(
                f"{where}: tensor {tensor.source} has shape {tensor.shape}, "
                f"but the file's description of the model asks for {shapes[name]}"
            )
        if len(tensor.shape) == 1 and tensor.dtype not in FLOAT_TYPES:
            raise ModelError(
                f"{where}: tensor {tensor.source} is a vector of type {tensor.dtype}; "
                f"supported for vectors: {', '.join(FLOAT_TYPES)}"
            )


def check_config(where: str, config: ModelConfig) -> None:
    """Refuse values that no decoder can have; ModelError names the value."""
    positive = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads")
    for field in (*positive, "head_dim", "max_position"):
        value = getattr(config, field)
        if not 1 <= value <= LARGEST_INT:
            bound = "at least 1" if value < 1 else f"at most {LARGEST_INT}"
            raise ModelError(f"{where}: {field} is {value}, which must be {bound}")
    if config.num_heads % config.num_kv_heads:
        raise ModelError(
            f"{where}: {config.num_heads} attention heads are not a multiple of "
            f"{config.num_kv_heads} key/value heads"
        )
    if config.head_dim % 2:
        raise ModelError(f"{where}: head size {config.head_dim} is odd, rotary embeddings need pairs")
    for field in ("rope_theta", "norm_epsilon"):
        value = getattr(config, field)
        if not 0 < value < float("inf"):
            raise ModelError(f"{where}: {field} is {value}, which must be positive and finite")
    scaling = config.rope_scaling
    if scaling is not None:
        if len(scaling.factors) != config.head_dim // 2:
            raise ModelError(
                f"{where}: {len(scaling.factors)} RoPE factors for heads of {config.head_dim}, "
                f"expected {config.head_dim // 2}"
            )
        if not all(0 < factor < float("inf") for factor in scaling.factors):
            raise ModelError(f"{where}: RoPE factors must be positive and finite")
        if not 0 < scaling.attention_factor < 100:
            raise ModelError(
                f"{where}: RoPE's attention factor is {scaling.attention_factor}, expected about 1"
            )
    for window in set(config.sliding_windows) - {None}:
        if window is not None and not 1 <= window <= LARGEST_INT:
            raise ModelError(
                f"{where}: sliding window is {window}, which must lie between 1 and {LARGEST_INT}"
            )
