"""The draft's side of a verification rule: what to propose, and which bonus tokens to expect."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sonoran.config import Law
from sonoran.sampling import noise, rowops
from sonoran.sampling.logits import TokenIds, adjust, cut_of
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.proposals import PointMass, ProposalDistribution, SparseDistribution
from sonoran.types import FloatArray, Int64Array, IntArray

_LEADING = 4  # tokens whose scores count; the others hardly have a chance

SUPPORT_SIZE = 256
"""Tokens kept of the draft's distribution under the rejection rule, so that it is small enough to send."""


def draft_sample(
    rule: Law,
    logits: FloatArray,
    prefix_ids: TokenIds,
    prompt_length: int,
    params: SamplingParams,
    seed: int,
    position: int,
    eos_ids: Sequence[int] = (),
) -> tuple[int, SparseDistribution | PointMass | None]:
    """Propose the token at ``position`` from the draft's logits, float32[V]; return it and its distribution.

    Coupled: the token that the draft itself would emit under the request's noise; no distribution. Rejection: a draw
    from the leading 256 tokens of the draft's distribution, which is returned as it was sampled. Point mass: the
    likeliest token, at any temperature; no distribution. ``prefix_ids`` is read only when ``params.reads_prefix``.
    """
    row = adjust(logits, prefix_ids, prompt_length, params, eos_ids, position)
    if params.greedy or rule == "point_mass":
        return rowops.argmax(row), PointMass() if rule == "rejection" else None
    if rule == "coupled":
        return int(rowops.coupled_top(row, cut_of(params), seed, position, 1)[0]), None
    kept = rowops.select(row, cut_of(params), SUPPORT_SIZE)
    return sample_weights(kept.ids, kept.weights, seed, position)


def draft_chance(
    rule: Law,
    logits: FloatArray,
    token: int,
    q: ProposalDistribution | None,
    params: SamplingParams,
    seed: int,
    position: int,
) -> float:
    """Return the chance that the draft gives its own ``token`` of being accepted; a guess, good for speed alone.

    Greedy and coupled: its share of the softmax over the leading scores, noise included. Rejection: the square root
    of its probability, see ``ssd.outcomes``. Point mass: its probability. Penalties and bias are left out.
    """
    if isinstance(q, SparseDistribution):
        return math.sqrt(q.probability(token))
    row = rowops.as_row(logits)
    if params.greedy or rule == "point_mass":
        ids = rowops.top(row, _LEADING)
        scores = row[ids].astype(np.float64) / (params.temperature or 1.0)
    else:
        ids = rowops.coupled_top(row, cut_of(params), seed, position, _LEADING)
        scores = row[ids].astype(np.float64) / params.temperature + noise.gumbel(seed, position, ids)
    weights = np.exp(scores - scores[0])
    return float(weights[0] / weights.sum()) if np.isfinite(scores[0]) else 0.0


def sample_weights(
    ids: IntArray, weights: Int64Array, seed: int, position: int
) -> tuple[int, SparseDistribution]:
    """Draw a proposal from ids (ascending) with integer weights (sum below 2**63); return it and its distribution."""
    sums = np.cumsum(weights)
    total = int(sums[-1])
    wanted = (noise.uniform_bits(seed, position, noise.Stream.DRAFT) * total) >> noise.UNIFORM_BITS
    token = int(ids[np.searchsorted(sums, wanted, side="right")])
    positive = weights > 0
    return token, SparseDistribution(ids[positive], weights[positive] / total)


def rank_candidates(
    logits: FloatArray,
    prefix_ids: TokenIds,
    params: SamplingParams,
    seed: int,
    position: int,
    rule: Law,
    n: int,
    exclude: int | None = None,
    *,
    prompt_length: int,
    eos_ids: Sequence[int] = (),
) -> list[int]:
    """Return the n tokens most likely to be the bonus token at ``position``, most likely first.

    Coupled: by the draft's score under the request's noise; what the draft's own truncation removed comes
    last. Rejection, point mass and greedy: by logit (SSD paper, Definition 10). ``exclude`` is the token that was sent
    for this position, which cannot be the bonus token. Equal scores are ordered by id. Fewer than n only if V
    is smaller.
    """
    row = adjust(logits, prefix_ids, prompt_length, params, eos_ids, position)
    excluded = -1 if exclude is None else exclude
    if params.greedy or rule != "coupled":
        return [int(token) for token in rowops.top(row, n, excluded)]
    cut = cut_of(params)
    first = [int(token) for token in rowops.coupled_top(row, cut, seed, position, n, excluded)]
    if len(first) == n:
        return first
    free = rowops.Cut(cut.inverse_temperature)
    rest = rowops.coupled_top(row, free, seed, position, n + len(first), excluded)
    return (first + [int(token) for token in rest if int(token) not in first])[:n]
