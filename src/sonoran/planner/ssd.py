"""Draft size when drafting is hidden behind verification: the SSD round cost joined to the scaling laws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sonoran.errors import PlanError, nearest
from sonoran.planner.checks import probability
from sonoran.planner.costs import CostModel
from sonoran.planner.laws import Array
from sonoran.planner.lawset import Laws
from sonoran.planner.optimum import Choice, search, smallest_draft
from sonoran.planner.throughput import tokens_per_round

Backup = Literal["draft", "none"]


@dataclass(frozen=True, slots=True)
class SsdSettings:
    """Hit rate of the speculation cache, and what a miss does: draft just in time, or a plain step of the
    target.
    """

    hit_rate: float = 0.8
    backup: Backup = "draft"

    def __post_init__(self) -> None:
        probability("hit_rate", self.hit_rate)
        if self.backup not in ("draft", "none"):
            raise PlanError(f"unknown backup {self.backup!r}{nearest(str(self.backup), ('draft', 'none'))}")


@dataclass(frozen=True, slots=True)
class HiddenDrafting:
    """SD against SSD under one cost model."""

    settings: SsdSettings
    sd: Choice
    ssd: Choice
    size_ratio: float  # best draft of SSD / best draft of SD
    hidden_limit: (
        float  # largest draft whose work fits behind one verification at SSD's gamma; 0 when none does
    )
    break_even: float  # largest draft with which SSD is still as fast as SD with its own best draft


def sd_rate(cost: CostModel, alpha: ArrayLike, target: float, draft: ArrayLike, gamma: ArrayLike) -> Array:
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
) -> Array:
    """Tokens per unit of cost of SSD (SSD paper, arXiv 2603.03251, Theorem 7, in absolute costs).

    A hit costs max(verify, predraft). A miss either drafts just in time (verify + draft, as many tokens as a
    hit) or takes one plain step of the target.
    """
    p = settings.hit_rate
    emitted = tokens_per_round(alpha, gamma)
    verify = cost.verify(target, gamma)
    hit = np.maximum(verify, cost.predraft(target, draft, gamma))
    if settings.backup == "draft":
        miss_tokens, miss = emitted, verify + cost.draft(target, draft, gamma)
    else:
        miss_tokens, miss = (
            np.ones_like(emitted),
            cost.verify(target, np.zeros_like(np.asarray(gamma, float))),
        )
    return np.asarray((p * emitted + (1.0 - p) * miss_tokens) / (p * hit + (1.0 - p) * miss))


def compare_hidden(
    laws: Laws,
    cost: CostModel,
    settings: SsdSettings,
    target: float,
    target_tokens: float,
    draft_tokens: float,
) -> HiddenDrafting | None:
    """Best draft of SD and of SSD over size and whole gamma; None when no draft is of any use."""

    def alpha(draft: Array) -> tuple[Array, NDArray[np.bool_]]:
        value = laws.alpha(target, target_tokens, draft, draft_tokens)
        usable = (value > 0) & (value < 1)
        return np.where(usable, value, 0.5), usable

    def sd(draft: Array, gamma: Array) -> Array:
        value, usable = alpha(draft)
        return np.where(usable, sd_rate(cost, value, target, draft, gamma), -np.inf)

    def ssd(draft: Array, gamma: Array) -> Array:
        value, usable = alpha(draft)
        return np.where(usable, ssd_rate(cost, settings, value, target, draft, gamma), -np.inf)

    low, high = float(smallest_draft(target)), target * (1 - 1e-9)
    plain = float(1.0 / cost.verify(target, 0.0))
    choices = []
    for rate in (sd, ssd):
        size, gamma, best = search(rate, low, high)
        if not np.isfinite(best):
            return None
        value = float(laws.alpha(target, target_tokens, size, draft_tokens))
        choices.append(Choice(size, gamma, value, best, best / plain))
    gammas = np.arange(1, 65, dtype=float)[None, :]

    def fast_enough(size: float) -> bool:
        return float(ssd(np.array([[size]]), gammas).max()) >= choices[0].throughput * (1 - 1e-12)

    def hidden(size: float) -> bool:
        gamma = choices[1].gamma
        return float(cost.predraft(target, size, gamma)) <= float(cost.verify(target, gamma))

    return HiddenDrafting(
        settings,
        choices[0],
        choices[1],
        choices[1].parameters / choices[0].parameters,
        _largest(hidden, low, high),
        _largest(fast_enough, choices[1].parameters, high),
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
