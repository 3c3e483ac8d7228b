"""Rows of random bytes in every weight format, packed and unpacked through the extension module."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest

from sonoran import _native

DENSE = ("F32", "F16", "BF16")
SMALL = ("Q3_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4")  # scales per 32 inputs
SUPER = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")  # scales per 256 inputs
FORMATS = (*DENSE, *SMALL, *SUPER)
INSTRUCTION_SETS = tuple(one.name for one in _native.instruction_sets() if one.built)  # portable is the last

# Where the fp16 scales of a format lie in a block of the file; MXFP4 has a power of two.
SCALES = {
    "Q3_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (),
}  # fmt: skip


def scale_bytes(kind: str) -> list[int]:
    """The bytes of a block of the file that hold its scales as such, not sub-scales of codes."""
    return [0] if kind == "MXFP4" else [at + i for at in SCALES[kind] for i in (0, 1)]


def group_of(kind: str) -> int:
    """Inputs of a block of the file format, which is also the group of activations with one scale."""
    return size_of(kind)[0]


def size_of(kind: str) -> tuple[int, int]:
    """Inputs and bytes of a block of the file format; Q3_0 is in no file, but packed through one like it."""
    if kind == "Q3_0":
        return 32, 14
    inputs, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return int(inputs), int(size)


def random_rows(kind: str, outputs: int, inputs: int, rng: np.random.Generator) -> np.ndarray:
    """Random bytes ``[outputs, row bytes]``: any codes and sub-scales, fp16 scales of either sign."""
    if kind == "F32":
        return rng.standard_normal((outputs, inputs), np.float32).view(np.uint8)
    if kind == "F16":
        return rng.standard_normal((outputs, inputs), np.float32).astype(np.float16).view(np.uint8)
    if kind == "BF16":
        values = rng.standard_normal((outputs, inputs), np.float32)
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    elements, size = size_of(kind)
    blocks = rng.integers(0, 256, (outputs, inputs // elements, size), np.uint8)
    for at in SCALES[kind]:
        scale = rng.uniform(0.01, 0.2, blocks.shape[:2]) * rng.choice([-1, 1], blocks.shape[:2])
        blocks[..., at : at + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
    if kind == "MXFP4":
        blocks[..., 0] = rng.integers(118, 128, blocks.shape[:2])
    return blocks.reshape(outputs, -1)


def exact(kind: str, rows: np.ndarray) -> np.ndarray:
    """The float32 values that the gguf package reads from file rows."""
    if kind == "Q3_0":
        return exact_q3_0(rows)
    values: np.ndarray = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind])
    return values.astype(np.float32, copy=False)


def exact_q3_0(rows: np.ndarray) -> np.ndarray:
    """An fp16 scale, then the lower two bits of the 32 codes, then their third bits; an offset of 4."""
    blocks = np.ascontiguousarray(rows).reshape(-1, 14)
    scales = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    codes = bits[:, 0:64:2] + 2 * bits[:, 1:64:2] + 4 * bits[:, 64:96]
    values: np.ndarray = scales * (codes.astype(np.float32) - 4)
    return values.reshape(len(rows), -1)


def pack(kind: str, rows: np.ndarray, inputs: int, to: str | None = None) -> Any:
    """A packed matrix from file rows, kept in its format or lowered to another one."""
    return _native.PackedMatrix(kind, to or kind, len(rows), inputs, np.ascontiguousarray(rows).reshape(-1))


def decode(matrix: Any, outputs: int, inputs: int) -> np.ndarray:
    out = np.full((outputs, inputs), np.nan, np.float32)
    matrix.decode(out)
    return out


def multiply(matrix: Any, x: np.ndarray, outputs: int, instruction_set: str = "auto") -> np.ndarray:
    """``x W^T``; the result starts as NaN, so that an output that is not written shows."""
    y = np.full((len(x), outputs), np.nan, np.float32)
    matrix.multiply(x, y, instruction_set)
    return y


def present_sets() -> list[str]:
    """The instruction sets that this processor can run, the best first."""
    return [one.name for one in _native.instruction_sets() if one.present]


def require_instruction_set(name: str) -> str:
    if name not in present_sets():
        pytest.skip(f"this processor has no {name}")
    return name
