"""Saguaro sampling: the draft plays its likeliest tokens down, so that the bonus token is among them.

sigma_{F,C} multiplies the probability of the F leading tokens by C <= 1 (SSD paper, Definition 14). The
residual max(p - q, 0), from which the bonus token is drawn after a rejection, then has more of its mass on
the guesses; the price is a lower acceptance. It matters under the rejection rule at temperature > 0 only.
The distribution that was really sampled is sent along, so the set need not be found again on the other side, and any
C is lossless.

What holds of Theorem 15 (the hit rate grows as C falls): it is true for a fixed set of guesses. But the
sent token is never guessed, so the guesses depend on what was drawn, and then the rate can fall between two
values of C, although C = 0 beats C = 1 in nearly every context. A larger set, such as F + 1, covers every
guess but falls more often. Tune C on tokens per second, not on the hit rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sonoran.errors import ConfigError
from sonoran.sampling import rowops
from sonoran.sampling.drafts import SUPPORT_SIZE, sample_weights
from sonoran.sampling.logits import TokenIds, adjust, cut_of
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.proposals import SparseDistribution
from sonoran.types import Float64Array, FloatArray, Int64Array, IntArray


def leading_order(scores: FloatArray | Float64Array, ids: IntArray | None = None) -> Int64Array:
    """Return indices by score, largest first; equal scores by token id (by index without ``ids``)."""
    by_id = np.arange(len(scores)) if ids is None else ids
    return np.lexsort((by_id, -np.asarray(scores, np.float64)))


def saguaro_scores(
    scores: FloatArray | Float64Array, fan_out: int, c: float, ids: IntArray | None = None
) -> Float64Array:
    """Return ``scores`` (log-probabilities up to a constant) with ln C added to the ``fan_out`` leading ones.

    The set is the same wherever the scores are: ties at its edge go to the lower id. With C = 0 its members
    become -inf, unless nothing else has mass: then the scores come back unchanged. Raises ConfigError for C
    outside [0, 1].
    """
    if not 0.0 <= c <= 1.0:
        nearest = 1.0 if c > 1.0 else 0.0
        raise ConfigError(f"saguaro_c must lie in [0, 1], got {c!r}; nearest valid value: {nearest:g}")
    if fan_out < 0:
        raise ConfigError(f"fan_out must be >= 0, got {fan_out!r}; nearest valid value: 0")
    result = np.array(scores, np.float64)
    chosen = leading_order(result, ids)[:fan_out]
    result[chosen] += math.log(c) if c > 0.0 else -math.inf
    return result if np.any(result > -math.inf) else np.array(scores, np.float64)


def saguaro_sample(
    logits: FloatArray,
    prefix_ids: TokenIds,
    prompt_length: int,
    params: SamplingParams,
    seed: int,
    position: int,
    fan_out: int,
    c: float,
    eos_ids: Sequence[int] = (),
) -> tuple[int, SparseDistribution]:
    """Propose the token at ``position`` from sigma_{F,C} of the draft's distribution; return it and its distribution.

    The counterpart of ``draft_sample`` for the rejection rule: float32[V] logits, the same bias, penalties,
    temperature and truncation, the leading 256 tokens, then sigma. At temperature 0 it proposes the argmax,
    as nothing is sampled. C = 1 is ordinary sampling. Raises ConfigError, NumericsError.
    """
    row = adjust(logits, prefix_ids, prompt_length, params, eos_ids, position)
    if params.greedy:
        token = rowops.argmax(row)
        return token, SparseDistribution(np.array([token], np.int32), np.ones(1))
    kept = rowops.select(row, cut_of(params), SUPPORT_SIZE)
    scores = saguaro_scores(kept.x, fan_out, c, kept.ids)
    # Rescaled to a largest score of 0, so that the integer weights keep their resolution when C is tiny.
    return sample_weights(kept.ids, rowops.weights(scores - scores.max()), seed, position)
