"""Tensors as they lie in a file: type, shape, raw bytes; and which ones a decoder must have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from sonoran.errors import ModelError
from sonoran.models.config import Experts, ModelConfig
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
NORM_NAMES = ("attn_norm", "attn_post_norm", "ffn_norm", "ffn_post_norm", "q_norm", "k_norm")
VECTOR_NAMES = (*NORM_NAMES, "q_bias", "k_bias", "v_bias", "o_bias", "shared_router")
MATRIX_NAMES = ("q", "k", "v", "o", "gate", "up", "down", "router", "shared_gate", "shared_up", "shared_down")
CONVERTED_AT_ONCE = 1 << 22  # values
LARGEST_INT = 2**31 - 1  # dimensions are 32-bit integers in the kernels
LAYER_NAMES = (*VECTOR_NAMES, *MATRIX_NAMES)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of an open model file.

    ``name`` is canonical: ``embed``, ``output`` (absent when tied to ``embed``), ``final_norm``, and
    ``layers.{i}.`` followed by one of LAYER_NAMES, or by ``experts.{j}.`` and gate, up or down. ``shape`` is
    (outputs, inputs), or (length,) for a vector.
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


def split_fused(where: str, config: ModelConfig, tensors: dict[str, TensorInfo]) -> None:
    """Replace tensors that hold several matrices, rows after rows, by views of each.

    ``qkv`` and ``gate_up`` of a layer have the rows of their parts one after another, ``gate_exps``, ``up_exps`` and
    ``down_exps`` the matrices of all experts.
    """
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    middle = config.intermediate_size
    for name, tensor in list(tensors.items()):
        layer, _, last = name.rpartition(".")
        if last == "qkv":
            parts = {"q": queries, "k": keys, "v": keys}
        elif last == "gate_up":
            parts = {"gate": middle, "up": middle}
        elif last.endswith("_exps"):
            _split_experts(where, config, tensors, name)
            continue
        else:
            continue
        rows = sum(parts.values())
        if tensor.shape[0] != rows or len(tensor.shape) != 2:
            raise ModelError(
                f"{where}: tensor {tensor.source} has shape {tensor.shape}, but the file's description of the model "
                f"asks for {rows} rows, those of {', '.join(parts)}"
            )
        del tensors[name]
        first = 0
        for part, count in parts.items():
            _add_part(tensors, f"{layer}.{part}", tensor, first, (count, tensor.shape[1]))
            first += count


def _split_experts(where: str, config: ModelConfig, tensors: dict[str, TensorInfo], name: str) -> None:
    tensor, count = tensors.pop(name), config.experts.count if config.experts else 0
    if len(tensor.shape) != 3 or tensor.shape[0] != count:
        raise ModelError(
            f"{where}: tensor {tensor.source} has shape {tensor.shape}, expected the matrices of {count} experts"
        )
    layer, _, last = name.rpartition(".")
    rows, width = tensor.shape[1:]
    for j in range(count):
        part = f"{layer}.experts.{j}.{last.removesuffix('_exps')}"
        _add_part(tensors, part, tensor, j * rows, (rows, width))


def _add_part(
    tensors: dict[str, TensorInfo], name: str, whole: TensorInfo, first: int, shape: tuple[int, int]
) -> None:
    row = byte_size(whole.dtype, (shape[1],))
    data = whole.data.reshape(-1)[first * row : (first + shape[0]) * row]
    tensors[name] = TensorInfo(name, whole.dtype, shape, data, whole.source)


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name and shape of every tensor that a decoder of this configuration has."""
    hidden, middle = config.hidden_size, config.intermediate_size
    queries = config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {}
    if config.norms != "behind":
        layer |= {"attn_norm": (hidden,), "ffn_norm": (hidden,)}
    if config.norms != "before":
        layer |= {"attn_post_norm": (hidden,), "ffn_post_norm": (hidden,)}
    layer |= {"q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, queries)}

    def mlp(before: str, inner: int) -> dict[str, tuple[int, ...]]:
        return {
            before + "gate": (inner, hidden),
            before + "up": (inner, hidden),
            before + "down": (hidden, inner),
        }

    experts = config.experts
    if experts is None:
        layer |= mlp("", middle)
    else:
        layer["router"] = (experts.count, hidden)
        for j in range(experts.count):
            layer |= mlp(f"experts.{j}.", experts.intermediate_size)
        if experts.shared_size:
            layer |= mlp("shared_", experts.shared_size) | {"shared_router": (hidden,)}
    if config.attention_bias:
        layer |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
    if config.output_bias:
        layer |= {"o_bias": (hidden,)}
    if config.qk_norm:
        whole = config.whole_qk_norm
        layer |= {
            "q_norm": (queries if whole else config.head_dim,),
            "k_norm": (keys if whole else config.head_dim,),
        }
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
    if not 2 <= config.rotated <= config.head_dim or config.rotated % 2:
        raise ModelError(
            f"{where}: {config.rotated} of {config.head_dim} elements of a head are rotated, expected an even number"
        )
    for field in ("embedding_scale", "attention_scale", "residual_scale", "logit_scale", "attention_softcap",
                  "logit_softcap", "window_rope_theta"):  # fmt: skip
        value = getattr(config, field)
        if value is not None and not 1e-9 < value < 1e9:
            raise ModelError(f"{where}: {field} is {value}, which must be positive and finite")
    _check_experts(where, config.experts)
    for field in ("rope_theta", "norm_epsilon"):
        value = getattr(config, field)
        if not 0 < value < float("inf"):
            raise ModelError(f"{where}: {field} is {value}, which must be positive and finite")
    for scaling in (config.rope_scaling, config.long_rope_scaling):
        if scaling is None:
            continue
        if len(scaling.factors) != config.rotated // 2:
            raise ModelError(
                f"{where}: {len(scaling.factors)} RoPE factors for heads of {config.rotated}, "
                f"expected {config.rotated // 2}"
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


def _check_experts(where: str, experts: Experts | None) -> None:
    if experts is None:
        return
    if not 1 <= experts.per_token <= experts.count:
        raise ModelError(f"{where}: {experts.per_token} of {experts.count} experts are chosen for a token")
    if experts.intermediate_size < 1 or experts.shared_size < 0:
        raise ModelError(
            f"{where}: experts have an inner width of {experts.intermediate_size}, the shared one of "
            f"{experts.shared_size}"
        )
