"""Fan-out: how many guesses to keep for each number k = 0..K of accepted tokens, given a budget B for all
of them.

Every rule returns K + 1 integers >= 0 with sum B. ``lengths[k]`` is the probability that exactly k tokens
are accepted, ``cdfs[k][F]`` the probability that the bonus token is among the first F guesses at k
(``cdfs[k][0] == 0``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sonoran.errors import ConfigError

Floats = NDArray[np.float64]


def uniform(budget: int, num_speculative_tokens: int) -> list[int]:
    """Return the same fan-out everywhere; what is left over goes to k = K, then k = 0, 1, 2, ...

    "All accepted" is by far the most frequent length of a good draft, so K comes first. Raises ConfigError.
    """
    _check(budget, num_speculative_tokens)
    positions = num_speculative_tokens + 1
    share, left = divmod(budget, positions)
    fan_out = [share] * positions
    for k in [num_speculative_tokens, *range(num_speculative_tokens)][:left]:
        fan_out[k] += 1
    return fan_out


def geometric_shares(
    budget: float, num_speculative_tokens: int, acceptance: float, exponent: float
) -> list[float]:
    """Return the real-valued optimum for acceptance rate a and an r-power-law hit rate (Theorem 12).

    ``F_k = F_0 a^(k/(1+r))`` for k < K and ``F_K = F_0 a^(K/(1+r)) (1-a)^(-1/(1+r))``. Raises ConfigError.
    """
    _check(budget, num_speculative_tokens)
    if not 0.0 <= acceptance <= 1.0:
        raise ConfigError(f"acceptance must lie in [0, 1], got {acceptance!r}")
    if not (math.isfinite(exponent) and exponent > 0.0):
        raise ConfigError(f"the power-law exponent must be positive, got {exponent!r}")
    k_max = num_speculative_tokens
    if acceptance == 1.0 or k_max == 0:
        return [0.0] * k_max + [float(budget)]
    root = 1.0 / (1.0 + exponent)
    weights = [acceptance ** (k * root) for k in range(k_max + 1)]
    weights[k_max] *= (1.0 - acceptance) ** -root
    scale = budget / math.fsum(weights)
    return [scale * w for w in weights]


def geometric(budget: int, num_speculative_tokens: int, acceptance: float, exponent: float) -> list[int]:
    """Return Theorem 12 in integers, by largest remainder.

    With B < K + 1 the least likely positions come out empty, because F_k grows with the probability of k.
    Raises ConfigError.
    """
    return largest_remainder(geometric_shares(budget, num_speculative_tokens, acceptance, exponent), budget)


def largest_remainder(shares: Sequence[float], total: int) -> list[int]:
    """Round shares >= 0 of sum ``total`` to integers of the same sum; ties go to the smaller index."""
    # Shares such as 3.0 may arrive as 2.9999999; without the nudge their floor would be one short.
    floors = [math.floor(s + 1e-9) for s in shares]
    order = sorted(range(len(shares)), key=lambda k: (floors[k] - shares[k], k))
    for k in order[: total - sum(floors)]:
        floors[k] += 1
    return floors


def measured(budget: int, lengths: Sequence[float], cdfs: Sequence[Sequence[float] | Floats]) -> list[int]:
    """Return the greedy integer form of Theorem 18: each guess goes where it gains the most hit probability.

    Optimal when every cdf is concave (each further guess gains less than the one before); see
    ``concave_majorant``. Beyond the end of a cdf nothing is gained; guesses that gain nothing go to the
    likeliest k. Raises ConfigError.
    """
    _check(budget, len(lengths) - 1)
    if len(cdfs) != len(lengths):
        raise ConfigError(f"{len(lengths)} lengths need as many cdfs, got {len(cdfs)}")
    gains = [p * np.diff(np.asarray(cdf, np.float64)) for p, cdf in zip(lengths, cdfs, strict=True)]
    fan_out = [0] * len(lengths)
    heads = [float(g[0]) if len(g) else 0.0 for g in gains]
    for _ in range(budget):
        k = max(range(len(heads)), key=lambda i: (heads[i], lengths[i] if heads[i] <= 0.0 else 0.0))
        fan_out[k] += 1
        heads[k] = float(gains[k][fan_out[k]]) if fan_out[k] < len(gains[k]) else 0.0
    return fan_out


def expected_hit_rate(
    fan_out: Sequence[int], lengths: Sequence[float], cdfs: Sequence[Sequence[float] | Floats]
) -> float:
    """Return the hit probability of a fan-out list, ``sum_k P(k) h_k(F_k)`` (Theorem 18)."""
    return math.fsum(
        p * float(cdf[min(f, len(cdf) - 1)]) for f, p, cdf in zip(fan_out, lengths, cdfs, strict=True)
    )


def geometric_lengths(num_speculative_tokens: int, acceptance: float) -> list[float]:
    """Return the law of the accepted length under acceptance rate a: ``a^k (1-a)``, and ``a^K`` at K."""
    a = acceptance
    return [a**k * (1.0 - a) for k in range(num_speculative_tokens)] + [a**num_speculative_tokens]


def power_law_cdf(exponent: float, size: int) -> Floats:
    """Return ``h(F) = 1 - F^(-r)`` for F = 1..size (Definition 11), and h(0) = 0."""
    h = np.zeros(size + 1)
    h[1:] = 1.0 - np.arange(1, size + 1, dtype=np.float64) ** -exponent
    return h


def concave_majorant(cdf: Sequence[float] | Floats) -> Floats:
    """Return the least concave function above ``cdf``: its gains sorted by pooling adjacent violators.

    The greedy rule is exact on it; for a law such as the power law, whose first guess gains nothing, it
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


def resize(fan_out: Sequence[int], num_speculative_tokens: int) -> list[int]:
    """Fit an explicit list to another K: the last entry stays "all accepted", the others keep their k.

    A longer K repeats the last entry before it. Raises ConfigError for an empty or negative list.
    """
    if not fan_out or not all(type(f) is int and f >= 0 for f in fan_out):
        raise ConfigError(f"a fan-out list needs K + 1 integers >= 0, got {list(fan_out)!r}")
    *head, last = fan_out
    filler = head[-1] if head else last
    return [*(head + [filler] * num_speculative_tokens)[:num_speculative_tokens], last]


def _check(budget: float, num_speculative_tokens: int) -> None:
    if not (math.isfinite(budget) and budget >= 0):
        raise ConfigError(f"the fan-out budget must be >= 0, got {budget!r}; nearest valid value: 0")
    if num_speculative_tokens < 0:
        raise ConfigError(f"num_speculative_tokens must be >= 0, got {num_speculative_tokens!r}")
