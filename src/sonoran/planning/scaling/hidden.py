"""How much larger may a draft be when drafting hides behind verification? SD against SSD under one cost model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sonoran.planning.scaling.costs import CostModel
from sonoran.planning.scaling.laws import Laws
from sonoran.planning.scaling.optimum import search, smallest_draft
from sonoran.planning.scaling.rates import SsdSettings, rates_by_size
from sonoran.planning.scaling.throughput import GAMMAS


@dataclass(frozen=True, slots=True)
class SizedDraft:
    """A draft size and a draft length, with the predicted throughput (tokens per unit of cost) and speed-up
    over AR.
    """

    parameters: float
    gamma: float
    alpha: float
    throughput: float
    speedup: float


@dataclass(frozen=True, slots=True)
class HiddenDrafting:
    """The best draft of SD, and that of SSD. Sizes in parameters; limits are 0 when no size meets them."""

    settings: SsdSettings
    sd: SizedDraft
    ssd: SizedDraft
    size_ratio: float  # best draft of SSD / best draft of SD
    hidden_limit: float  # largest draft whose work fits behind one verification at SSD's gamma
    break_even: float  # largest draft with which SSD is still as fast as SD with its own best draft


def compare_hidden(
    laws: Laws,
    cost: CostModel,
    settings: SsdSettings,
    target: float,
    target_tokens: float,
    draft_tokens: float,
) -> HiddenDrafting | None:
    """Best draft of SD and of SSD over size and whole gamma; None when no draft is of any use."""
    low, high = float(smallest_draft(target)), target * (1 - 1e-9)
    plain = float(1.0 / cost.verify(target, 0.0))
    sd, ssd = (
        rates_by_size(laws, cost, mode, target, target_tokens, draft_tokens) for mode in (None, settings)
    )
    found = []
    for rate in (sd, ssd):
        size, gamma, best = search(rate, low, high)
        if not np.isfinite(best):
            return None
        alpha = float(laws.alpha(target, target_tokens, size, draft_tokens))
        found.append(SizedDraft(size, gamma, alpha, best, best / plain))
    best_sd, best_ssd = found

    def fast_enough(size: float) -> bool:
        return float(ssd(np.array([[size]]), GAMMAS[None, :]).max()) >= best_sd.throughput * (1 - 1e-12)

    def hidden(size: float) -> bool:
        gamma = best_ssd.gamma
        return float(cost.predraft(target, size, gamma)) <= float(cost.verify(target, gamma))

    return HiddenDrafting(
        settings,
        best_sd,
        best_ssd,
        best_ssd.parameters / best_sd.parameters,
        _largest(hidden, low, high),
        _largest(fast_enough, best_ssd.parameters, high),
    )


def _largest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Largest size for which the predicate holds, by bisection in ln N; 0 when it fails at ``low``."""
    if not holds(low):
        return 0.0
    if holds(high):
        return high
    for _ in range(45):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
