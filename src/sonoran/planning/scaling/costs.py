"""What a round costs: parameters read, as the paper has it, or milliseconds measured by rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from sonoran.errors import PlanError, nearest, shown
from sonoran.models.untrusted import refusing
from sonoran.planning.scaling.quantities import finite, parameter_count
from sonoran.theory.distributions import Floats
from sonoran.theory.latency import LARGEST, LatencyCurve
from sonoran.theory.speedup import non_negative


class CostModel(Protocol):
    """Costs of one round, all in the same ``unit``; sizes in parameters, gamma in drafted tokens, all
    broadcast.
    """

    @property
    def unit(self) -> str:
        """``FLOP`` or ``ms``."""
        ...

    def verify(self, target: float, gamma: ArrayLike) -> Floats:
        """One pass of the target over gamma + 1 rows; gamma = 0 is an autoregressive step."""
        ...

    def draft(self, target: float, draft: ArrayLike, gamma: ArrayLike) -> Floats:
        """gamma sequential passes of the draft over one row (synchronous drafting)."""
        ...

    def predraft(self, target: float, draft: ArrayLike, gamma: ArrayLike) -> Floats:
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
        for name in ("verify_slope", "draft_floor", "draft_factor"):
            non_negative(name, finite(name, getattr(self, name)))
        if self.draft_factor == 0:
            raise PlanError(f"draft_factor must be positive, got {self.draft_factor:g}")

    @property
    def unit(self) -> str:
        """FLOP."""
        return "FLOP"

    def verify(self, target: float, gamma: ArrayLike) -> Floats:
        """FLOPs of one verification."""
        return np.asarray(2.0 * target * (1.0 + self.verify_slope * np.asarray(gamma, float)))

    def _pass(self, target: float, draft: ArrayLike) -> Floats:
        return np.asarray(2.0 * (self.draft_factor * np.asarray(draft, float) + self.draft_floor * target))

    def draft(self, target: float, draft: ArrayLike, gamma: ArrayLike) -> Floats:
        """FLOPs of gamma draft passes."""
        return np.asarray(self._pass(target, draft) * np.asarray(gamma, float))

    def predraft(self, target: float, draft: ArrayLike, gamma: ArrayLike) -> Floats:
        """FLOPs of gamma + 1 draft passes, rows counted once."""
        return np.asarray(self._pass(target, draft) * (np.asarray(gamma, float) + 1.0))


PUBLISHED_COST = ParameterCost()
"""SDSL eq. 3, for which closed forms exist."""


@dataclass(frozen=True, slots=True)
class DraftLatency:
    """Measured draft of ``parameters`` parameters: milliseconds of a pass by rows."""

    parameters: float
    latency: LatencyCurve


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Milliseconds measured on one machine. The target's size does not enter: its latency was measured.

    Between measured drafts the latency is linear in the size, and beyond them the nearest line goes on; below the
    smallest it leads to ``floor_ms`` at size 0 where that is given, and never below half the smallest draft's latency
    where it is not. The latency of one draft alone says nothing about size: below its size it stays, above it grows
    in proportion. ``branches`` is the number of rows of a pass over the speculation cache.
    """

    target: LatencyCurve
    drafts: tuple[DraftLatency, ...]
    branches: int = 8
    floor_ms: float | None = None
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

    @property
    def knows_size(self) -> bool:
        """Whether the measurements tell what a draft of another size costs."""
        return len(self.drafts) > 1 or self.floor_ms is not None

    def verify(self, target: float, gamma: ArrayLike) -> Floats:
        """Milliseconds of one pass over gamma + 1 rows."""
        return _milliseconds(self.target, np.asarray(gamma, float) + 1.0)

    def _pass(self, draft: ArrayLike, rows: ArrayLike) -> Floats:
        by_draft = [_milliseconds(item.latency, rows) for item in self.drafts]
        size, *by_draft = np.broadcast_arrays(np.asarray(draft, float), *by_draft)
        if not self.knows_size:
            return np.asarray(by_draft[0] * np.maximum(1.0, size / self.sizes[0]))
        sizes = np.concatenate([[0.0], self.sizes])
        known = np.stack([self._at_zero(by_draft), *by_draft])
        index = np.clip(np.searchsorted(sizes, size) - 1, 0, len(sizes) - 2)
        low = np.take_along_axis(known, index[None], 0)[0]
        high = np.take_along_axis(known, index[None] + 1, 0)[0]
        share = (size - sizes[index]) / (sizes[index + 1] - sizes[index])
        return np.asarray(np.maximum(low + share * (high - low), 0.0))

    def _at_zero(self, by_draft: list[Floats]) -> Floats:
        """Where the line below the smallest draft ends."""
        if self.floor_ms is not None:
            return np.full(by_draft[0].shape, self.floor_ms)
        slope = (by_draft[1] - by_draft[0]) / (self.sizes[1] - self.sizes[0])
        return np.asarray(np.clip(by_draft[0] - slope * self.sizes[0], by_draft[0] / 2, by_draft[0]))

    def draft(self, target: float, draft: ArrayLike, gamma: ArrayLike) -> Floats:
        """Milliseconds of gamma passes over one row."""
        return np.asarray(self._pass(draft, 1.0) * np.asarray(gamma, float))

    def predraft(self, target: float, draft: ArrayLike, gamma: ArrayLike) -> Floats:
        """Milliseconds of a pass over gamma + 1 rows and gamma passes over the branches."""
        steps = np.asarray(gamma, float)
        return np.asarray(self._pass(draft, steps + 1.0) + steps * self._pass(draft, self.branches))


@refusing("latencies", PlanError)
def measured_cost_from_dict(value: Mapping[str, Any]) -> MeasuredCost:
    """Build a MeasuredCost from ``{"target": {rows: ms}, "drafts": [{"parameters", "milliseconds": {rows:
    ms}}]}``.

    Optional keys: ``branches``, ``floor_ms``, and ``name`` of a draft, for people. Raises PlanError.
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
            raise PlanError(f"{where} must be an object, got {shown(item)}")
        _known(item, ("name", "parameters", "milliseconds"), where)
        if "parameters" not in item or "milliseconds" not in item:
            raise PlanError(f"{where} needs 'parameters' and 'milliseconds'")
        size = parameter_count(f"{where}: parameters", item["parameters"])
        drafts.append(DraftLatency(size, _latencies(item["milliseconds"], where)))
    branches = finite("latencies: branches", value.get("branches", 8))
    floor = None if value.get("floor_ms") is None else finite("latencies: floor_ms", value["floor_ms"])
    if not 1 <= branches <= LARGEST or branches != int(branches) or not 0 <= (floor or 0.0) <= LARGEST:
        raise PlanError(
            f"latencies: branches must be a whole number >= 1 and floor_ms >= 0, got {branches:g}, {floor}"
        )
    return MeasuredCost(_latencies(value["target"], "latencies: target"), tuple(drafts), int(branches), floor)


def _known(value: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    for key in value:
        if key not in names:
            raise PlanError(f"{where}: unknown key {key!r}{nearest(str(key), names)}")


def _latencies(value: Any, where: str) -> LatencyCurve:
    if not isinstance(value, Mapping) or not value:
        raise PlanError(f"{where}: milliseconds must be an object of rows -> ms, got {shown(value)}")
    try:
        curve = LatencyCurve.of(value)
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from None
    least = curve.points[0][0]
    if least != 1:
        raise PlanError(f"{where}: the latency of 1 row is missing (first is {least:g} rows)")
    return curve


def _milliseconds(curve: LatencyCurve, rows: ArrayLike) -> Floats:
    """A curve at every entry of an array."""
    return np.asarray(np.vectorize(curve, otypes=[float])(rows))
