"""How far alpha of one pair may lie from the acceptance plane, and what one measured pair of a target changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sonoran.errors import PlanError
from sonoran.planning.scaling.acceptance import AcceptanceLaw, fit_measurements
from sonoran.planning.scaling.measurements import Measurement
from sonoran.planning.scaling.regression import quantile95
from sonoran.theory.distributions import Floats

Predict = Callable[[Measurement], tuple[float, float]]
"""Draft and target perplexity from which alpha of a pair is predicted."""


@dataclass(frozen=True, slots=True)
class Scatter:
    """What is unknown about alpha of a pair whose target was not measured.

    ``variance`` is that of a pair around the plane, ``covariance`` [3][3] that of the plane's A, B, C, by leaving
    out one target at a time (jackknife: pairs of one target share whatever sets it apart); ``dof`` is the number of
    targets less one.
    """

    variance: float
    covariance: tuple[tuple[float, ...], ...]
    dof: int

    def half_width(self, x: float, y: float) -> float:
        """Half of the 95 % interval of alpha at perplexities x (draft) and y (target)."""
        point = np.array([x, y, 1.0])
        plane = float(point @ np.array(self.covariance) @ point)
        return quantile95(self.dof) * float(np.sqrt(self.variance + plane))


def scatter(points: Sequence[Measurement], residual_sd: float) -> Scatter:
    """Scatter of a plane fitted to ``points``; where targets are too few to leave one out, that of the residuals."""
    left_out = planes_without(points)
    dof = max(len({point.target for point in points}) - 1, 1)
    if left_out is None:
        return Scatter(residual_sd**2, ((0.0,) * 3,) * 3, dof)
    planes = np.array(list(left_out.values()))
    around = planes - _plane(points)
    covariance = dof / (dof + 1) * around.T @ around
    return Scatter(residual_sd**2, tuple(tuple(float(v) for v in row) for row in covariance), dof)


def planes_without(points: Sequence[Measurement]) -> dict[str, Floats] | None:
    """A, B, C fitted without each target in turn; None with fewer than three targets or where no plane is left."""
    targets = sorted({point.target for point in points})
    if len(targets) < 3:
        return None
    try:
        return {name: _plane([point for point in points if point.target != name]) for name in targets}
    except PlanError:
        return None


def left_out_error(points: Sequence[Measurement]) -> float | None:
    """Root mean square error of alpha on targets left out of the fit one at a time; None with fewer than three."""
    errors = _left_out(points, lambda point: (point.x, point.y))
    return None if errors is None else float(np.sqrt(np.mean(np.square(np.concatenate(errors)))))


def anchored_error(points: Sequence[Measurement], predict: Predict) -> float | None:
    """Root mean square error of alpha on a target left out, once one of its pairs is known.

    The plane of the other targets is shifted through that pair, and asked for the target's other drafts. None with
    fewer than three targets, or where no target has two drafts.
    """
    errors = _left_out(points, predict)
    if errors is None:
        return None
    shifted = [(e[:, None] - e[None, :])[~np.eye(len(e), dtype=bool)] for e in errors]
    together = np.concatenate(shifted)
    return float(np.sqrt(np.mean(together**2))) if together.size else None


@dataclass(frozen=True, slots=True)
class Shifted:
    """An acceptance law moved by ``offset`` in alpha."""

    inner: AcceptanceLaw
    offset: float | Floats

    @property
    def a(self) -> float | Floats:
        """The inner law's coefficient of x, whose shape tells how many planes there are."""
        return getattr(self.inner, "a", 0.0)

    def alpha(self, x: ArrayLike, y: ArrayLike) -> Floats:
        """Acceptance rate, not clipped."""
        return np.asarray(self.inner.alpha(x, y) + self.offset)

    def slope(self, x: ArrayLike, y: ArrayLike) -> Floats:
        """d alpha / d x."""
        return self.inner.slope(x, y)


def _plane(points: Sequence[Measurement]) -> Floats:
    return fit_measurements(points).regression.coefficients


def _left_out(points: Sequence[Measurement], predict: Predict) -> list[Floats] | None:
    """Predicted less measured alpha of each target's pairs, by a plane that never saw the target."""
    planes = planes_without(points)
    if planes is None:
        return None
    errors = []
    for name, plane in planes.items():
        pairs = [point for point in points if point.target == name]
        errors.append(np.array([plane @ np.array([*predict(p), 1.0]) - p.alpha for p in pairs]))
    return errors
