"""What a round costs: parameters read, as the paper has it, or milliseconds measured by rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sonoran.errors import PlanError, nearest
from sonoran.planning.scaling.laws import Array, finite, parameters, probability, tokens_per_round
from sonoran.planning.scaling.lawset import Laws
from sonoran.planning.scaling.optimum import Choice, search, smallest_draft


class CostModel(Protocol):
    """Costs of one round, all in the same ``unit``; sizes in parameters, gamma in drafted tokens, all
    broadcast.
    """

    @property
    def unit(self) -> str:
        """``FLOP`` or ``ms``."""
        ...

    def verify(self, target: float, gamma: ArrayLike) -> Array:
        """One pass of the target over gamma + 1 rows; gamma = 0 is an autoregressive step."""
        ...

    def draft(self, target: float, draft: ArrayLike, gamma: ArrayLike) -> Array:
        """gamma sequential passes of the draft over one row (synchronous drafting)."""
        ...

    def predraft(self, target: float, draft: ArrayLike, gamma: ArrayLike) -> Array:
        """Building the speculation cache: a trunk pass over gamma + 1 rows, then gamma passes over the
        branches.
        """
        ...


@dataclass(frozen=True, slots=True)
class ParameterCost:
    """2 FLOPs per parameter and pass, which is a proxy of latency while reading the weights dominates.

    verify = 2 M (1 + verify_slope * gamma): slope 0 as published (SDSL eq. 3), 1 for the true operation
    count. A draft pass costs 2 (draft_factor * N + draft_floor * M): the floor stands for launch and depth
    overheads that do not shrink with N, the factor for a draft device slower (> 1) than that of the target. A
    pass over the branches of the speculation cache costs as much as one over a single row.
    """

    verify_slope: float = 0.0
    draft_floor: float = 0.0
    draft_factor: float = 1.0

    def __post_init__(self) -> None:
        for name in ("verify_slope", "draft_floor"):
            if finite(name, getattr(self, name)) < 0:
                raise PlanError(f"{name} must not be negative, got {getattr(self, name):g}; nearest: 0")
        if finite("draft_factor", self.draft_factor) <= 0:
            raise PlanError(f"draft_factor must be positive, got {self.draft_factor:g}")

    @property
    def unit(self) -> str:
        """FLOP."""
        return "FLOP"

    @property
    def published(self) -> bool:
        """Whether this is exactly the cost of SDSL eq. 3, for which closed forms exist."""
        return self == ParameterCost()

    def verify(self, target: float, gamma: ArrayLike) -> Array:
        """FLOPs of one verification."""
        return np.asarray(2.0 * target * (1.0 + self.verify_slope * np.asarray(gamma, float)))

    def _pass(self, target: float, draft: ArrayLike) -> Array:
        return np.asarray(2.0 * (self.draft_factor * np.asarray(draft, float) + self.draft_floor * target))

    def draft(self, target: float, draft: ArrayLike, gamma: ArrayLike) -> Array:
        """FLOPs of gamma draft passes."""
        return np.asarray(self._pass(target, draft) * np.asarray(gamma, float))

    def predraft(self, target: float, draft: ArrayLike, gamma: ArrayLike) -> Array:
        """FLOPs of gamma + 1 draft passes, rows counted once."""
        return np.asarray(self._pass(target, draft) * (np.asarray(gamma, float) + 1.0))


PUBLISHED_COST = ParameterCost()


@dataclass(frozen=True, slots=True)
class RowLatency:
    """Milliseconds of one pass by number of rows: linear in between, last slope kept beyond."""

    rows: tuple[float, ...]
    milliseconds: tuple[float, ...]

    def __call__(self, rows: ArrayLike) -> Array:
        """Milliseconds for ``rows`` rows."""
        wanted = np.asarray(rows, float)
        inside = np.interp(wanted, self.rows, self.milliseconds)
        if len(self.rows) == 1:
            return np.asarray(inside)
        slope = (self.milliseconds[-1] - self.milliseconds[-2]) / (self.rows[-1] - self.rows[-2])
        return np.asarray(inside + max(slope, 0.0) * np.maximum(wanted - self.rows[-1], 0.0))


@dataclass(frozen=True, slots=True)
class DraftLatency:
    """Measured draft of ``parameters`` parameters."""

    parameters: float
    latency: RowLatency
    name: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Milliseconds measured on one machine. The target's size does not enter: its latency was measured.

    Between measured drafts the latency is linear in the size; below the smallest it falls linearly to
    ``floor_ms`` at size 0; above the largest the last slope is kept. ``branches`` is the number of rows of a
    pass over the speculation cache.
    """

    target: RowLatency
    drafts: tuple[DraftLatency, ...]
    branches: int = 8
    floor_ms: float = 0.0
    sizes: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.drafts:
            raise PlanError("measured latencies need at least one draft")
        ordered = tuple(sorted(self.drafts, key=lambda item: item.parameters))
        object.__setattr__(self, "drafts", ordered)
        object.__setattr__(self, "sizes", tuple(item.parameters for item in ordered))
        if len(set(self.sizes)) != len(self.sizes):
            raise PlanError("measured latencies: two drafts have the same number of parameters")

    @property
    def unit(self) -> str:
        """Milliseconds."""
        return "ms"

    def verify(self, target: float, gamma: ArrayLike) -> Array:
        """Milliseconds of one pass over gamma + 1 rows."""
        return self.target(np.asarray(gamma, float) + 1.0)

    def _pass(self, draft: ArrayLike, rows: ArrayLike) -> Array:
        size, count = np.broadcast_arrays(np.asarray(draft, float), np.asarray(rows, float))
        known = np.stack([item.latency(count) for item in self.drafts])
        sizes = np.concatenate([[0.0], self.sizes])
        known = np.concatenate([np.full((1, *count.shape), self.floor_ms), known])
        index = np.clip(np.searchsorted(sizes, size) - 1, 0, len(sizes) - 2)
        low = np.take_along_axis(known, index[None], 0)[0]
        high = np.take_along_axis(known, index[None] + 1, 0)[0]
        share = (size - sizes[index]) / (sizes[index + 1] - sizes[index])
        return np.asarray(np.maximum(low + share * (high - low), 0.0))

    def draft(self, target: float, draft: ArrayLike, gamma: ArrayLike) -> Array:
        """Milliseconds of gamma passes over one row."""
        return np.asarray(self._pass(draft, 1.0) * np.asarray(gamma, float))

    def predraft(self, target: float, draft: ArrayLike, gamma: ArrayLike) -> Array:
        """Milliseconds of a pass over gamma + 1 rows and gamma passes over the branches."""
        steps = np.asarray(gamma, float)
        return np.asarray(self._pass(draft, steps + 1.0) + steps * self._pass(draft, self.branches))


def measured_cost_from_dict(value: Mapping[str, Any]) -> MeasuredCost:
    """Build a MeasuredCost from ``{"target": {rows: ms}, "drafts": [{"parameters", "milliseconds": {rows:
    ms}}]}``.

    Optional keys: ``branches``, ``floor_ms``, and ``name`` of a draft. Raises PlanError.
    """
    _known(value, ("target", "drafts", "branches", "floor_ms"), "latencies")
    for key in ("target", "drafts"):
        if key not in value:
            raise PlanError(f"latencies: missing {key!r}")
    if not isinstance(value["drafts"], list):
        raise PlanError("latencies: 'drafts' must be a list of objects")
    drafts = []
    for number, item in enumerate(value["drafts"], 1):
        where = f"latencies: draft {number}"
        if not isinstance(item, Mapping):
            raise PlanError(f"{where} must be an object, got {item!r}")
        _known(item, ("name", "parameters", "milliseconds"), where)
        if "parameters" not in item or "milliseconds" not in item:
            raise PlanError(f"{where} needs 'parameters' and 'milliseconds'")
        size = parameters(f"{where}: parameters", item["parameters"])
        drafts.append(DraftLatency(size, _rows(item["milliseconds"], where), str(item.get("name", ""))))
    branches = finite("latencies: branches", value.get("branches", 8))
    floor = finite("latencies: floor_ms", value.get("floor_ms", 0.0))
    if branches < 1 or branches != int(branches) or floor < 0:
        raise PlanError(
            f"latencies: branches must be a whole number >= 1 and floor_ms >= 0, got {branches:g}, {floor:g}"
        )
    return MeasuredCost(_rows(value["target"], "latencies: target"), tuple(drafts), int(branches), floor)


def _known(value: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    for key in value:
        if key not in names:
            raise PlanError(f"{where}: unknown key {key!r}{nearest(str(key), names)}")


def _rows(value: Any, where: str) -> RowLatency:
    if not isinstance(value, Mapping) or not value:
        raise PlanError(f"{where}: milliseconds must be an object of rows -> ms, got {value!r}")
    pairs = sorted((finite(f"{where}: rows", k), finite(f"{where}: {k} rows", v)) for k, v in value.items())
    for rows, milliseconds in pairs:
        if rows < 1 or milliseconds <= 0:
            raise PlanError(
                f"{where}: rows must be >= 1 and milliseconds > 0, got {rows:g}: {milliseconds:g}"
            )
    if pairs[0][0] != 1:
        raise PlanError(f"{where}: the latency of 1 row is missing (first is {pairs[0][0]:g} rows)")
    return RowLatency(tuple(p[0] for p in pairs), tuple(p[1] for p in pairs))


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
