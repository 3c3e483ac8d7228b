"""N* under other defensible assumptions: usually a wider spread than any confidence interval."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sonoran.errors import PlanError
from sonoran.planner.acceptance import AcceptanceLaw, fit_log_plane
from sonoran.planner.costs import CostModel, ParameterCost
from sonoran.planner.laws import BESIROGLU, HOFFMANN, Array
from sonoran.planner.lawset import Laws, fit_measurements
from sonoran.planner.measurements import Measurement
from sonoran.planner.optimum import optimal_sizes, search, smallest_draft
from sonoran.planner.ssd import sd_rate

_COSTS: tuple[tuple[str, CostModel], ...] = (
    ("whole draft lengths", ParameterCost()),
    ("every drafted token adds 2 % to a verification", ParameterCost(verify_slope=0.02)),
    ("every draft pass costs another 3 % of a target pass", ParameterCost(draft_floor=0.03)),
)


@dataclass(frozen=True, slots=True)
class Variant:
    """N* in parameters under another assumption."""

    name: str
    parameters: float


def variants(laws: Laws, target: float, target_tokens: float, draft_tokens: float) -> tuple[Variant, ...]:
    """N* with one assumption changed at a time: costs, loss constants, shape of alpha, subsets of the
    measurements.

    Variants that cannot be fitted or that give no optimum are left out.
    """
    found = [
        Variant(name, search_size(laws, cost, target, target_tokens, draft_tokens)) for name, cost in _COSTS
    ]
    for name, changed in _changed(laws):
        size = optimal_sizes(changed.loss, changed.acceptance, target, target_tokens, draft_tokens)
        found.append(Variant(name, float(size)))
    return tuple(variant for variant in found if np.isfinite(variant.parameters))


def search_size(
    laws: Laws, cost: CostModel, target: float, target_tokens: float, draft_tokens: float
) -> float:
    """N* of synchronous SD with whole gamma under any cost; NaN when no draft is usable."""

    def rate(size: Array, gamma: Array) -> Array:
        alpha = laws.alpha(target, target_tokens, size, draft_tokens)
        usable = (alpha > 0) & (alpha < 1)
        return np.where(usable, sd_rate(cost, np.where(usable, alpha, 0.5), target, size, gamma), -np.inf)

    return search(rate, float(smallest_draft(target)), target * (1 - 1e-9))[0]


def family(name: str) -> str:
    """Family of a model named ``family-size``."""
    return name.rsplit("-", 1)[0]


def _changed(laws: Laws) -> Iterator[tuple[str, Laws]]:
    if laws.loss == BESIROGLU:
        yield "Hoffmann's loss constants", dataclasses.replace(laws, loss=HOFFMANN)
    for name, law in _refitted(laws.measurements):
        yield name, dataclasses.replace(laws, acceptance=law)


def _refitted(points: tuple[Measurement, ...]) -> Iterator[tuple[str, AcceptanceLaw]]:
    if len(points) > 3:
        try:
            law, _ = fit_log_plane([p.x for p in points], [p.y for p in points], [p.alpha for p in points])
        except PlanError:
            pass
        else:
            yield "alpha linear in the logarithms of the perplexities", law
    drafts = sorted({family(p.draft) for p in points})
    targets = sorted({family(p.target) for p in points})
    subsets = [(f"only {name} drafts", [p for p in points if family(p.draft) == name]) for name in drafts]
    subsets += [
        (f"without {name} targets", [p for p in points if family(p.target) != name]) for name in targets
    ]
    for name, subset in subsets:
        # Small subsets say more about noise than about the law.
        if not 10 <= len(subset) < len(points):
            continue
        try:
            plane = fit_measurements(subset).plane
        except PlanError:
            continue
        if plane.a < 0:
            yield name, plane
