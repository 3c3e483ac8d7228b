"""Throughput of speculative decoding in closed form (SDSL eq. 3, 4 and 13), stable for any ratio of sizes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sonoran.planner.checks import open_unit
from sonoran.planner.laws import Array

MAX_GAMMA = 64
"""Longest draft that the integer searches look at, unless they are asked for more."""


def tokens_per_round(alpha: ArrayLike, gamma: ArrayLike) -> Array:
    """Expected tokens of one verification, bonus included: (1 - alpha**(gamma + 1)) / (1 - alpha).

    Assumes independent acceptance with probability ``alpha`` in (0, 1) (Leviathan et al., arXiv 2211.17192).
    """
    log_alpha = np.log(np.asarray(alpha, float))
    return np.asarray(np.expm1((np.asarray(gamma, float) + 1.0) * log_alpha) / np.expm1(log_alpha))


def throughput(alpha: ArrayLike, gamma: ArrayLike, target: ArrayLike, draft: ArrayLike) -> Array:
    """T(gamma) in tokens per FLOP: tokens per round over 2 (M + gamma N) (SDSL eq. 3).

    The target is charged 2 M however many rows it verifies, so this is a proxy of latency when reading the
    weights dominates, not a count of operations.
    """
    cost = 2.0 * (np.asarray(target, float) + np.asarray(gamma, float) * np.asarray(draft, float))
    return np.asarray(tokens_per_round(alpha, gamma) / cost)


def _excess(tau: Array) -> Array:
    """Solve s - ln(1 + s) = tau for s >= 0, so that 1 + s = -W_-1(-exp(-1 - tau)).

    Newton from the upper bound tau + sqrt(2 tau) (Chatzigeorgiou 2013); the function is convex, so the steps
    never overshoot and never underflow, whereas exp(-1 - tau) is 0 in double precision beyond tau = 745.
    """
    tau = np.maximum(tau, 0.0)
    s = tau + np.sqrt(2.0 * tau)
    for _ in range(12):
        with np.errstate(divide="ignore", invalid="ignore"):
            step = (s - np.log1p(s) - tau) * (1.0 + s) / s
        s = np.where(s > 0, np.maximum(s - np.where(np.isfinite(step), step, 0.0), 0.0), 0.0)
    return np.asarray(s)


def _tau(alpha: ArrayLike, target: ArrayLike, draft: ArrayLike) -> tuple[Array, Array]:
    decay = -np.log(np.asarray(alpha, float))
    return decay, (np.asarray(target, float) / np.asarray(draft, float) - 1.0) * decay


def lambert_w(alpha: ArrayLike, target: ArrayLike, draft: ArrayLike) -> Array:
    """W_-1(-alpha**(M/N - 1) / e), at most -1. Branch 0 would give a negative draft length."""
    _, tau = _tau(alpha, target, draft)
    return -1.0 - _excess(tau)


def optimal_gamma(alpha: ArrayLike, target: ArrayLike, draft: ArrayLike) -> Array:
    """Continuous gamma that maximises T (SDSL eq. 13); values below 0 mean that no drafting helps.

    Needs 0 < alpha < 1 and draft < target. At the optimum alpha**(gamma + 1) = -1 / W, hence the form used
    here, which does not subtract two large numbers.
    """
    decay, tau = _tau(alpha, target, draft)
    return np.asarray(np.log1p(_excess(tau)) / decay - 1.0)


def optimal_throughput(alpha: ArrayLike, target: ArrayLike, draft: ArrayLike) -> Array:
    """T at the continuous optimum, tokens per FLOP (SDSL eq. 4)."""
    decay, tau = _tau(alpha, target, draft)
    rest = -np.expm1(-decay)
    return np.asarray(decay / (2.0 * np.asarray(draft, float) * rest * (1.0 + _excess(tau))))


def best_integer_gamma(alpha: float, target: float, draft: float, *, minimum: int = 1) -> int:
    """Whole gamma of the highest T, at least ``minimum``; with ``minimum=0`` the answer 0 means: do not
    speculate.

    T has a single maximum in gamma, so the two neighbours of the continuous optimum suffice. Raises PlanError
    for alpha outside (0, 1).
    """
    open_unit("alpha", alpha)
    real = float(optimal_gamma(alpha, target, draft))
    low = max(minimum, int(np.floor(max(real, 0.0))))
    values = [float(throughput(alpha, g, target, draft)) for g in (low, low + 1)]
    return low if values[0] >= values[1] else low + 1


def autoregressive_throughput(target: ArrayLike) -> Array:
    """One token per pass: 1 / (2 M) tokens per FLOP."""
    return np.asarray(0.5 / np.asarray(target, float))


def speedup(alpha: ArrayLike, gamma: ArrayLike, target: ArrayLike, draft: ArrayLike) -> Array:
    """T(gamma) over that of autoregressive decoding: 2 M T (Leviathan et al., Theorem 3.8)."""
    return np.asarray(throughput(alpha, gamma, target, draft) / autoregressive_throughput(target))
