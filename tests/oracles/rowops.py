"""Row operations in plain NumPy: the definition that those of ``sampling.rowops`` must meet bit for bit.

A row is float32[V], finite or -inf (a token that cannot be sampled). With inverse temperature b, ``x = b *
logit - b * max`` in float64 and the weight of a token is ``portable.weights(x)``: an integer, so sums are
exact and no result depends on the order of summation. Tokens are ordered by logit, descending; equal logits
by id, ascending.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sonoran.errors import ConfigError, NumericsError
from sonoran.sampling.rowops import Cut, Selection
from sonoran.types import FloatArray, IntArray
from tests.oracles import noise, portable


def argmax(row: FloatArray) -> int:
    """Return the token with the largest logit, the lowest id of equals."""
    _check(row)
    return int(np.argmax(row))


def top(row: FloatArray, n: int, exclude: int = -1) -> IntArray:
    """Return the first n token ids in order, without ``exclude`` and tokens at -inf."""
    _check(row)
    order = _order(row)
    leading: IntArray = order[order != exclude][:n]
    return leading


def select(row: FloatArray, cut: Cut, limit: int = 0) -> Selection:
    """Return the smallest leading set with ``top_p`` of the weight of what survives min-p and top-k.

    ``limit`` keeps only that many leading survivors (0: all).
    """
    _check(row)
    order = _order(row)
    scaled = row[order].astype(np.float64) * cut.inverse_temperature
    x = scaled - scaled[0]
    keep = len(order)
    if cut.min_p > 0.0:
        keep = int(np.count_nonzero(x >= portable.log_scalar(cut.min_p)))
    if cut.top_k > 0:
        keep = min(keep, cut.top_k)
    weights = portable.weights(x)
    if cut.top_p < 1.0:
        sums = np.cumsum(weights[:keep])
        total = int(sums[-1])
        wanted = min(math.ceil(cut.top_p * float(total)), total)
        keep = int(np.searchsorted(sums, wanted, side="left")) + 1
    if limit > 0:
        keep = min(keep, limit)
    by_id = np.argsort(order[:keep])
    return Selection(order[:keep][by_id], x[:keep][by_id], weights[:keep][by_id])


def coupled_top(row: FloatArray, cut: Cut, seed: int, position: int, n: int, exclude: int = -1) -> IntArray:
    """Return the n survivors with the largest ``x + gumbel(seed, position, id)`` in order, ties by id."""
    kept = select(row, cut)
    scores = kept.x + noise.gumbel(seed, position, kept.ids)
    order = kept.ids[np.lexsort((kept.ids, -scores))]
    leading: IntArray = order[order != exclude][:n]
    return leading


def inverse_sample(row: FloatArray, cut: Cut, bits: int) -> int:
    """Return the first survivor, by id, at which the weights' sum exceeds ``bits * total // 2**52``."""
    kept = select(row, cut)
    sums = np.cumsum(kept.weights)
    wanted = (bits * int(sums[-1])) >> noise.UNIFORM_BITS
    return int(kept.ids[np.searchsorted(sums, wanted, side="right")])


def mass(row: FloatArray, cut: Cut, token: int) -> tuple[int, int]:
    """Return the weight of one token, 0 if it does not survive, and the total weight of the survivors."""
    kept = select(row, cut)
    return int(kept.weights[kept.ids == token].sum()), int(kept.weights.sum())


def logsumexp(row: FloatArray) -> float:
    """Return ``log(sum(exp(row)))`` from the sum of the integer weights."""
    total = float(select(row, Cut()).weights.sum())
    return float(np.max(row)) + portable.log_scalar(total) - portable.WEIGHT_BITS * portable.LN2


def _check(row: FloatArray) -> None:
    if row.shape[0] > portable.MAX_VOCAB:
        raise ConfigError(
            f"the vocabulary has {row.shape[0]} tokens; at most {portable.MAX_VOCAB} are supported"
        )
    if row.shape[0] == 0 or not np.all(row < np.inf):  # also false for NaN
        raise NumericsError("a row of logits is empty or holds NaN or +inf")
    if np.max(row) == -np.inf:
        raise NumericsError("every token of a row of logits is excluded (-inf)")


def _order(row: FloatArray) -> NDArray[np.int32]:
    ids = np.flatnonzero(row > -np.inf).astype(np.int32)
    ordered: IntArray = ids[np.argsort(-row[ids], kind="stable")]
    return ordered
