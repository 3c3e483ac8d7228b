"""N* under other defensible assumptions: usually a wider spread than any confidence interval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sonoran.errors import PlanError
from sonoran.planning.scaling.acceptance import (
    AcceptanceLaw,
    AcceptancePlane,
    fit_log_plane,
    fit_measurements,
)
from sonoran.planning.scaling.costs import PUBLISHED_COST, CostModel, ParameterCost
from sonoran.planning.scaling.laws import Laws
from sonoran.planning.scaling.loss import BESIROGLU, CALIBRATED, HOFFMANN
from sonoran.planning.scaling.measurements import Measurement
from sonoran.planning.scaling.optimum import optimal_sizes, search, smallest_draft
from sonoran.planning.scaling.rates import rates_by_size

_SEARCHED_DRAWS = 200


@dataclass(frozen=True, slots=True)
class Variant:
    """N* in parameters under another assumption."""

    name: str
    parameters: float


def variants(
    laws: Laws, cost: CostModel, target: float, target_tokens: float, draft_tokens: float
) -> tuple[Variant, ...]:
    """N* with one assumption of the plan changed at a time: its costs, its loss constants, the shape of alpha, the
    measurements that it rests on.

    Variants that cannot be fitted or that give no optimum are left out.
    """
    found = [
        Variant(name, search_size(laws, changed, target, target_tokens, draft_tokens))
        for name, changed in _costs(cost)
    ]
    for name, other in _changed(laws):
        found.append(Variant(name, best_size(other, cost, target, target_tokens, draft_tokens)))
    return tuple(variant for variant in found if np.isfinite(variant.parameters))


def best_size(laws: Laws, cost: CostModel, target: float, target_tokens: float, draft_tokens: float) -> float:
    """N* in parameters: continuous gamma for the published cost, else whole; NaN when no draft is usable."""
    if cost == PUBLISHED_COST:
        return float(optimal_sizes(laws.loss, laws.law, target, target_tokens, draft_tokens))
    return search_size(laws, cost, target, target_tokens, draft_tokens)


def search_size(
    laws: Laws, cost: CostModel, target: float, target_tokens: float, draft_tokens: float
) -> float:
    """N* of synchronous SD with whole gamma under any cost; NaN when no draft is usable."""
    rate = rates_by_size(laws, cost, None, target, target_tokens, draft_tokens)
    return search(rate, float(smallest_draft(target)), target * (1 - 1e-9))[0]


def family(name: str) -> str:
    """Family of a model named ``family-size``."""
    return name.rsplit("-", 1)[0]


def _costs(cost: CostModel) -> Iterator[tuple[str, CostModel]]:
    if not isinstance(cost, ParameterCost):
        return
    if cost == PUBLISHED_COST:
        yield "whole draft lengths", cost
    more, floor = cost.verify_slope + 0.02, cost.draft_floor + 0.03
    yield "every drafted token adds 2 % to a verification", replace(cost, verify_slope=more)
    yield "every draft pass costs another 3 % of a target pass", replace(cost, draft_floor=floor)


def _changed(laws: Laws) -> Iterator[tuple[str, Laws]]:
    if laws.loss == BESIROGLU:
        yield "Hoffmann's loss constants", replace(laws, loss=HOFFMANN)
        yield "loss law calibrated to measured perplexities", replace(laws, loss=CALIBRATED)
    if laws.loss == CALIBRATED:
        yield "loss law not calibrated", replace(laws, loss=BESIROGLU)
    for name, law in _refitted(laws.measurements):
        yield name, replace(laws, acceptance=law)


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


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """95 % interval of N* when the measured targets are drawn again; ``draws`` that gave an optimum."""

    low: float
    median: float
    high: float
    draws: int


def resampled_planes(points: tuple[Measurement, ...], draws: int, seed: int) -> AcceptancePlane | None:
    """Planes refitted on whole targets drawn with replacement; None with fewer than three targets.

    Pairs of one target share whatever sets it apart, so resampling single pairs would be too sure of itself.
    """
    targets = sorted({point.target for point in points})
    if len(targets) < 3 or draws < 1:
        return None
    rows = np.array([[p.x, p.y, 1.0, p.alpha] for p in points])
    group = np.array([targets.index(p.target) for p in points])
    moments = np.stack([rows[group == g].T @ rows[group == g] for g in range(len(targets))])
    generator = np.random.default_rng(seed)
    weights = generator.multinomial(len(targets), np.full(len(targets), 1 / len(targets)), size=draws)
    sums = np.einsum("dg,gij->dij", weights.astype(float), moments)
    # Draws in which (nearly) one target is repeated do not determine a plane.
    usable = np.linalg.cond(sums[:, :3, :3]) < 1e9
    if usable.sum() < draws / 2:
        return None
    fitted = np.linalg.solve(sums[usable, :3, :3], sums[usable, :3, 3:])[..., 0]
    return AcceptancePlane(fitted[:, 0], fitted[:, 1], fitted[:, 2])


def bootstrap_size(
    laws: Laws,
    cost: CostModel,
    target: float,
    target_tokens: float,
    draft_tokens: float,
    *,
    draws: int = 1000,
    seed: int = 0,
) -> Bootstrap | None:
    """Interval of N* over ``resampled_planes``; costs without a closed form are searched on at most 200
    draws.
    """
    closed = cost == PUBLISHED_COST
    planes = resampled_planes(laws.measurements, draws if closed else min(draws, _SEARCHED_DRAWS), seed)
    if planes is None:
        return None
    if closed:
        law = replace(laws, acceptance=planes).law
        sizes = optimal_sizes(laws.loss, law, target, target_tokens, draft_tokens)
    else:
        rows = zip(*(np.atleast_1d(v) for v in (planes.a, planes.b, planes.c)), strict=True)
        changed = (replace(laws, acceptance=AcceptancePlane(*(float(v) for v in row))) for row in rows)
        sizes = np.array([search_size(law, cost, target, target_tokens, draft_tokens) for law in changed])
    usable = sizes[np.isfinite(sizes)]
    if len(usable) < len(sizes) / 2:
        return None
    low, median, high = np.percentile(usable, [2.5, 50.0, 97.5])
    return Bootstrap(float(low), float(median), float(high), len(usable))
