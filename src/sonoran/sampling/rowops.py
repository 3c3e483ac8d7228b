"""Row operations on logits: native where the extension is built, otherwise NumPy; with equal results."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import numpy as np

from sonoran.sampling import noise, portable, reference
from sonoran.sampling.reference import Cut, Selection
from sonoran.types import FloatArray, IntArray

_native: Any = None
with contextlib.suppress(ImportError):
    _native = importlib.import_module("sonoran._native")

NATIVE = hasattr(_native, "sampling_select")
"""Whether the compiled row operations are in use."""

__all__ = [
    "NATIVE",
    "Cut",
    "Selection",
    "argmax",
    "coupled_top",
    "gumbel",
    "inverse_sample",
    "logsumexp",
    "mass",
    "select",
    "top",
]


def as_row(row: FloatArray) -> FloatArray:
    """Return the row as contiguous float32, without a copy if it is that already."""
    return np.ascontiguousarray(row, np.float32)


def argmax(row: FloatArray) -> int:
    """See ``reference.argmax``."""
    if NATIVE:
        return int(_native.sampling_argmax(row))
    return reference.argmax(row)


def top(row: FloatArray, n: int, exclude: int = -1) -> IntArray:
    """See ``reference.top``."""
    if NATIVE:
        ids: IntArray = _native.sampling_top(row, n, exclude)
        return ids
    return reference.top(row, n, exclude)


def select(row: FloatArray, cut: Cut, limit: int = 0) -> Selection:
    """See ``reference.select``."""
    if NATIVE:
        return Selection(*_native.sampling_select(row, *cut, limit))
    return reference.select(row, cut, limit)


def coupled_top(row: FloatArray, cut: Cut, seed: int, position: int, n: int, exclude: int = -1) -> IntArray:
    """See ``reference.coupled_top``."""
    if NATIVE:
        ids: IntArray = _native.sampling_coupled_top(row, *cut, seed % 2**64, position, n, exclude)
        return ids
    return reference.coupled_top(row, cut, seed, position, n, exclude)


def gumbel(seed: int, position: int, ids: IntArray) -> portable.Float64Array:
    """See ``noise.gumbel``."""
    if NATIVE:
        values: portable.Float64Array = _native.sampling_gumbel(seed % 2**64, position, ids)
        return values
    return noise.gumbel(seed, position, ids)


def inverse_sample(row: FloatArray, cut: Cut, bits: int) -> int:
    """See ``reference.inverse_sample``."""
    if NATIVE:
        return int(_native.sampling_inverse(row, *cut, bits))
    return reference.inverse_sample(row, cut, bits)


def mass(row: FloatArray, cut: Cut, token: int) -> tuple[int, int]:
    """See ``reference.mass``."""
    if NATIVE:
        weight, total = _native.sampling_mass(row, *cut, token)
        return int(weight), int(total)
    return reference.mass(row, cut, token)


def logsumexp(row: FloatArray) -> float:
    """Return ``log(sum(exp(row)))``, from the exact sum of integer weights (relative error below 5e-9)."""
    largest, total = _native.sampling_total_weight(row) if NATIVE else reference.total_weight(row)
    return float(largest) + portable.log_scalar(float(total)) - portable.WEIGHT_BITS * portable.LN2
