"""How sure is N*: bootstrap of the acceptance plane, whole targets at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sonoran.planner.acceptance import AcceptancePlane
from sonoran.planner.costs import PUBLISHED_COST, CostModel
from sonoran.planner.lawset import Laws
from sonoran.planner.measurements import Measurement
from sonoran.planner.optimum import optimal_sizes
from sonoran.planner.sensitivity import search_size

_SEARCHED_DRAWS = 200


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
        sizes = optimal_sizes(laws.loss, planes, target, target_tokens, draft_tokens)
    else:
        rows = zip(*(np.atleast_1d(v) for v in (planes.a, planes.b, planes.c)), strict=True)
        changed = (replace(laws, acceptance=AcceptancePlane(*(float(v) for v in row))) for row in rows)
        sizes = np.array([search_size(law, cost, target, target_tokens, draft_tokens) for law in changed])
    usable = sizes[np.isfinite(sizes)]
    if len(usable) < len(sizes) / 2:
        return None
    low, median, high = np.percentile(usable, [2.5, 50.0, 97.5])
    return Bootstrap(float(low), float(median), float(high), len(usable))
