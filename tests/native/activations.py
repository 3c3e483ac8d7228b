"""The obvious reference of a product with quantised weights and activations, in NumPy."""

from __future__ import annotations

import numpy as np

from tests.native.packing import DENSE, exact

GROUP = 32  # inputs that share an activation scale


def quantise(x: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric int8 codes ``[rows, groups, group]`` (round half to even) and scales ``[rows, groups]``."""
    parts = x.reshape(len(x), -1, group)
    top = np.abs(parts).max(-1)
    with np.errstate(divide="ignore"):
        inverse = np.where(top > 0, np.float32(127) / top, np.float32(0)).astype(np.float32)
    codes = np.rint(parts * inverse[..., None]).astype(np.int8)
    return codes, top / np.float32(127)


def rounded(x: np.ndarray, group: int) -> np.ndarray:
    """What the quantised activations stand for, in float64."""
    codes, scales = quantise(x, group)
    return (codes * scales[..., None].astype(np.float64)).reshape(x.shape)


def product(kind: str, rows: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``x W^T`` in float64, and the float32 rounding error that summing it group by group may make.

    A group is what has one activation scale: its dot product is exact in integers, so only the conversion,
    the scaling and one addition (two with a minimum) per group round, and the K formats' super-scale.
    """
    weights = exact(kind, rows).astype(np.float64)
    group = 1 if kind in DENSE else GROUP
    inputs = x.astype(np.float64) if kind in DENSE else rounded(x, group)
    groups = inputs.shape[1] // group
    largest = np.abs(inputs) @ np.abs(weights).T
    return inputs @ weights.T, largest * (2 * groups + 6) * 2.0**-24
