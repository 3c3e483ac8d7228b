"""Throughput of speculative decoding by draft length, and the best length, in closed form (SDSL section 4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sonoran.theory.distributions import Floats

GAMMAS = np.arange(1, 65, dtype=float)
"""The whole draft lengths that searches look at."""


def tokens_per_round(alpha: ArrayLike, gamma: ArrayLike) -> Floats:
    """Expected tokens of one verification, bonus included: (1 - alpha**(gamma + 1)) / (1 - alpha).

    Assumes independent acceptance with probability ``alpha`` in (0, 1) (Leviathan et al., arXiv 2211.17192).
    """
    log_alpha = np.log(np.asarray(alpha, float))
    return np.asarray(np.expm1((np.asarray(gamma, float) + 1.0) * log_alpha) / np.expm1(log_alpha))


def optimal_gamma(alpha: ArrayLike, target: ArrayLike, draft: ArrayLike) -> Floats:
    """Continuous gamma that maximises T (SDSL eq. 13); values below 0 mean that no drafting helps.

    Needs 0 < alpha < 1 and draft < target. At the optimum alpha**(gamma + 1) = -1 / W, hence the form used
    here, which does not subtract two large numbers.
    """
    decay, tau = _tau(alpha, target, draft)
    return np.asarray(np.log1p(_excess(tau)) / decay - 1.0)


def optimal_throughput(alpha: ArrayLike, target: ArrayLike, draft: ArrayLike) -> Floats:
    """T at the continuous optimum, tokens per FLOP (SDSL eq. 4)."""
    decay, tau = _tau(alpha, target, draft)
    rest = -np.expm1(-decay)
    return np.asarray(decay / (2.0 * np.asarray(draft, float) * rest * (1.0 + _excess(tau))))


def _excess(tau: Floats) -> Floats:
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


def _tau(alpha: ArrayLike, target: ArrayLike, draft: ArrayLike) -> tuple[Floats, Floats]:
    decay = -np.log(np.asarray(alpha, float))
    return decay, (np.asarray(target, float) / np.asarray(draft, float) - 1.0) * decay
