"""Tokens per unit of cost of SD and of SSD, under any cost model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from sonoran.errors import PlanError, nearest
from sonoran.planning.scaling.costs import CostModel
from sonoran.planning.scaling.laws import Laws
from sonoran.planning.scaling.throughput import GAMMAS, tokens_per_round
from sonoran.theory.distributions import Floats
from sonoran.theory.speedup import batch_speedup, probability

Rate = Callable[[Floats, Floats], Floats]
"""Tokens per unit of cost for draft sizes [n, 1] and draft lengths [1, g]."""

_batch_speedup = np.vectorize(batch_speedup, otypes=[float])


@dataclass(frozen=True, slots=True)
class SsdSettings:
    """Hit rate of the speculation cache, and what a miss does: draft just in time, or a plain step of the
    target.
    """

    hit_rate: float = 0.8
    backup: Literal["draft", "none"] = "draft"

    def __post_init__(self) -> None:
        probability("hit_rate", self.hit_rate)
        if self.backup not in ("draft", "none"):
            raise PlanError(f"unknown backup {self.backup!r}{nearest(str(self.backup), ('draft', 'none'))}")


def sd_rate(cost: CostModel, alpha: ArrayLike, target: float, draft: ArrayLike, gamma: ArrayLike) -> Floats:
    """Tokens per unit of cost of synchronous SD: draft, then verify."""
    return np.asarray(
        tokens_per_round(alpha, gamma) / (cost.verify(target, gamma) + cost.draft(target, draft, gamma))
    )


def ssd_rate(
    cost: CostModel,
    settings: SsdSettings,
    alpha: ArrayLike,
    target: float,
    draft: ArrayLike,
    gamma: ArrayLike,
) -> Floats:
    """Tokens per unit of cost of SSD (SSD paper, arXiv 2603.03251, Theorem 7, one sequence).

    A round ends when verification and the building of the cache have both ended: max(verify, predraft). After a miss
    the draft either works just in time (+ draft, as many tokens as a hit), or the round is a plain step of the target
    beside the building of the next cache.
    """
    emitted, verify = tokens_per_round(alpha, gamma), cost.verify(target, gamma)
    build = cost.predraft(target, draft, gamma)
    hit = np.maximum(verify, build)
    if settings.backup == "draft":
        miss_tokens: ArrayLike = emitted
        miss = hit + cost.draft(target, draft, gamma)
    else:
        miss_tokens, miss = 1.0, np.maximum(cost.verify(target, 0.0), build)
    # The theorem counts in verifications of gamma + 1 rows; a plain step is shorter, so it may be the unit.
    unit = np.minimum(verify, miss)
    speedup = _batch_speedup(settings.hit_rate, emitted, miss_tokens, hit / unit, miss / unit - 1.0, 1)
    return np.asarray(speedup / unit)


def rates_by_size(
    laws: Laws,
    cost: CostModel,
    settings: SsdSettings | None,
    target: float,
    target_tokens: float,
    draft_tokens: float,
) -> Rate:
    """The rate of SSD, or of SD without settings; -inf for drafts where the laws give no acceptance rate."""

    def rate(size: Floats, gamma: Floats) -> Floats:
        alpha = laws.alpha(target, target_tokens, size, draft_tokens)
        usable = (alpha > 0) & (alpha < 1) & (size < target)
        safe = np.where(usable, alpha, 0.5)
        if settings is None:
            return np.where(usable, sd_rate(cost, safe, target, size, gamma), -np.inf)
        return np.where(usable, ssd_rate(cost, settings, safe, target, size, gamma), -np.inf)

    return rate


def best_gamma(
    cost: CostModel, settings: SsdSettings | None, alpha: float, target: float, draft: float
) -> tuple[int, float]:
    """Best whole gamma of at least 1, and its speed-up over plain decoding; SD without settings."""
    if settings is None:
        rates = sd_rate(cost, alpha, target, draft, GAMMAS)
    else:
        rates = ssd_rate(cost, settings, alpha, target, draft, GAMMAS)
    speedups = rates * float(cost.verify(target, 0.0))
    index = int(np.argmax(speedups))
    return index + 1, float(speedups[index])
