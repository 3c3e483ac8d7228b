"""Distributions of a verification's outcome: how many tokens are accepted, and where the bonus token ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sonoran.errors import PlanError
from sonoran.theory.speedup import lookahead

Floats = NDArray[np.float64]


def expected_hit_rate(
    fan_out: Sequence[int], lengths: Sequence[float], cdfs: Sequence[Sequence[float] | Floats]
) -> float:
    """Return the hit probability of a fan-out list, ``sum_k P(k) h_k(F_k)`` (Theorem 18)."""
    return math.fsum(
        p * float(cdf[min(f, len(cdf) - 1)]) for f, p, cdf in zip(fan_out, lengths, cdfs, strict=True)
    )


def power_law_cdf(exponent: float, size: int) -> Floats:
    """Return ``h(F) = 1 - F^(-r)`` for F = 1..size (Definition 11), and h(0) = 0."""
    h = np.zeros(size + 1)
    h[1:] = 1.0 - np.arange(1, size + 1, dtype=np.float64) ** -exponent
    return h


def concave_majorant(cdf: Sequence[float] | Floats) -> Floats:
    """Return the least concave function above ``cdf``: its gains sorted by pooling adjacent violators.

    The greedy rule is exact on it; for one such as the power law, whose first guess gains nothing, it
    spreads the gain of the first useful run of guesses evenly.
    """
    values = np.asarray(cdf, np.float64)
    pools: list[tuple[float, int]] = []  # (sum of gains, number of guesses), means decreasing
    for gain in np.diff(values):
        total, count = float(gain), 1
        while pools and pools[-1][0] * count <= total * pools[-1][1]:
            last_total, last_count = pools.pop()
            total, count = total + last_total, count + last_count
        pools.append((total, count))
    gains = [t / c for t, c in pools for _ in range(c)]
    hull: Floats = np.concatenate([[0.0], np.cumsum(gains)]) + values[0]
    return hull


def length_distribution(rates: Sequence[float], num_speculative_tokens: int) -> list[float]:
    """Return the probabilities of 0..K accepted tokens from the acceptance by position. Raises PlanError."""
    alive, lengths = 1.0, []
    for i in range(lookahead(num_speculative_tokens)):
        rate = rates[min(i, len(rates) - 1)]
        lengths.append(alive * (1.0 - rate))
        alive *= rate
    return [*lengths, alive]


def pooled_rate(rates: Sequence[float], num_speculative_tokens: int) -> float:
    """Return the tokens accepted per token verified, over speculations of K >= 1 tokens. Raises PlanError."""
    k = lookahead(num_speculative_tokens)
    if k < 1:
        raise PlanError("a rate of acceptance needs speculations of at least 1 token")
    lengths = length_distribution(rates, k)
    accepted = sum(length * p for length, p in enumerate(lengths))
    reached = sum(min(length + 1, k) * p for length, p in enumerate(lengths))
    return accepted / reached
