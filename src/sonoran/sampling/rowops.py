"""Row operations on logits, compiled (native/sampling); ``tests/oracles/rowops.py`` defines them in NumPy.

A row is float32[V], finite or -inf (a token that cannot be sampled). With inverse temperature b, ``x = b *
logit - b * max`` in float64, and the weight of a token is ``round(exp(x) * 2**44)``: an integer, so sums are
exact and no result depends on the order of summation. Tokens are ordered by logit, descending; equal logits
by id, ascending. A row that is empty, holds NaN or +inf, or is -inf throughout raises NumericsError; one of
more than 2**19 tokens raises ConfigError.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# By name, so that an extension without one of them fails here and not in the middle of a text.
from sonoran._native import (
    sampling_argmax,
    sampling_coupled_top,
    sampling_inverse,
    sampling_logsumexp,
    sampling_mass,
    sampling_select,
    sampling_top,
    sampling_weights,
)
from sonoran.types import Float64Array, FloatArray, Int64Array, IntArray


class Cut(NamedTuple):
    """Temperature and truncation of a row; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 are off."""

    inverse_temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


class Selection(NamedTuple):
    """Surviving tokens, ascending by id; their scaled logits minus the largest; their integer weights."""

    ids: IntArray
    x: Float64Array
    weights: Int64Array


def as_row(row: FloatArray) -> FloatArray:
    """Return the row as contiguous float32, without a copy if it is that already."""
    return np.ascontiguousarray(row, np.float32)


def argmax(row: FloatArray) -> int:
    """Return the token with the largest logit, the lowest id of equals."""
    return int(sampling_argmax(row))


def top(row: FloatArray, n: int, exclude: int = -1) -> IntArray:
    """Return the first n token ids in order, without ``exclude`` and tokens at -inf."""
    ids: IntArray = sampling_top(row, n, exclude)
    return ids


def select(row: FloatArray, cut: Cut, limit: int = 0) -> Selection:
    """Return the smallest leading set with ``top_p`` of the weight of what survives min-p and top-k.

    ``limit`` keeps only that many leading survivors (0: all).
    """
    return Selection(*sampling_select(row, *cut, limit))


def coupled_top(row: FloatArray, cut: Cut, seed: int, position: int, n: int, exclude: int = -1) -> IntArray:
    """Return the n survivors with the largest ``x + gumbel(seed, position, id)`` in order, ties by id."""
    ids: IntArray = sampling_coupled_top(row, *cut, seed % 2**64, position, n, exclude)
    return ids


def inverse_sample(row: FloatArray, cut: Cut, bits: int) -> int:
    """Return the first survivor, by id, at which the weights' sum exceeds ``bits * total // 2**52``."""
    return int(sampling_inverse(row, *cut, bits))


def mass(row: FloatArray, cut: Cut, token: int) -> tuple[int, int]:
    """Return the weight of one token, 0 if it does not survive, and the total weight of the survivors."""
    weight, total = sampling_mass(row, *cut, token)
    return int(weight), int(total)


def weights(x: Float64Array) -> Int64Array:
    """Return ``round(exp(x) * 2**44)`` for ``x <= 0``, 0 for -inf."""
    found: Int64Array = sampling_weights(x)
    return found


def logsumexp(row: FloatArray) -> float:
    """Return ``log(sum(exp(row)))``, from the exact sum of integer weights (relative error below 5e-9)."""
    return float(sampling_logsumexp(row))
