"""Acceptance laws: the plane alpha = A x + B y + C, and one-variable curves for a single target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from sonoran.errors import PlanError
from sonoran.planning.scaling.measurements import Measurement
from sonoran.planning.scaling.regression import Regression, least_squares, quantile95
from sonoran.theory.distributions import Floats

CurveKind = Literal["linear", "logarithmic", "power"]
CURVE_KINDS: tuple[CurveKind, ...] = ("linear", "logarithmic", "power")


class AcceptanceLaw(Protocol):
    """Expected acceptance rate per drafted token, from the perplexities x (draft) and y (target)."""

    def alpha(self, x: ArrayLike, y: ArrayLike) -> Floats:
        """Not clipped: values outside (0, 1) mean that the law does not apply there."""
        ...

    def slope(self, x: ArrayLike, y: ArrayLike) -> Floats:
        """d alpha / d x."""
        ...


@dataclass(frozen=True, slots=True)
class AcceptancePlane:
    """alpha = a x + b y + c (SDSL eq. 5); fields may be arrays of planes that broadcast (bootstrap)."""

    a: float | Floats
    b: float | Floats
    c: float | Floats

    def alpha(self, x: ArrayLike, y: ArrayLike) -> Floats:
        """Acceptance rate, not clipped."""
        return np.asarray(self.a * np.asarray(x, float) + self.b * np.asarray(y, float) + self.c)

    def slope(self, x: ArrayLike, y: ArrayLike) -> Floats:
        """The coefficient a, broadcast."""
        return np.asarray(self.a + 0.0 * np.asarray(x, float))


PUBLISHED_PLANE = AcceptancePlane(-0.0067, 0.012971, 0.642084)
"""SDSL Table 3: 13 targets x 10 drafts, R2 0.60."""


@dataclass(frozen=True, slots=True)
class LogPlane:
    """alpha = a ln x + b ln y + c: another shape, which fits the paper's data as well (R2 0.62)."""

    a: float
    b: float
    c: float

    def alpha(self, x: ArrayLike, y: ArrayLike) -> Floats:
        """Acceptance rate, not clipped."""
        return np.asarray(self.a * np.log(x) + self.b * np.log(y) + self.c)

    def slope(self, x: ArrayLike, y: ArrayLike) -> Floats:
        """d alpha / d x."""
        return np.asarray(self.a / np.asarray(x, float))


@dataclass(frozen=True, slots=True)
class AcceptanceCurve:
    """alpha(x) of one target: ``first x + second``, ``first ln x + second`` or ``first x ** second``."""

    kind: CurveKind
    first: float
    second: float

    def alpha(self, x: ArrayLike, y: ArrayLike = 0.0) -> Floats:
        """Acceptance rate, not clipped; y is ignored."""
        value = np.asarray(x, float)
        if self.kind == "linear":
            return np.asarray(self.first * value + self.second)
        if self.kind == "logarithmic":
            return np.asarray(self.first * np.log(value) + self.second)
        return np.asarray(self.first * value**self.second)

    def slope(self, x: ArrayLike, y: ArrayLike = 0.0) -> Floats:
        """d alpha / d x."""
        value = np.asarray(x, float)
        if self.kind == "linear":
            return np.asarray(self.first + 0.0 * value)
        if self.kind == "logarithmic":
            return np.asarray(self.first / value)
        return np.asarray(self.first * self.second * value ** (self.second - 1.0))


@dataclass(frozen=True, slots=True)
class PlaneFit:
    """A fitted plane with its statistics (order a, b, c) and the range of perplexities it was fitted on."""

    plane: AcceptancePlane
    regression: Regression
    x_range: tuple[float, float]
    y_range: tuple[float, float]


@dataclass(frozen=True, slots=True)
class CurveFit:
    """A fitted curve; ``margins`` are the 95 % half-widths of ``first`` and ``second``."""

    curve: AcceptanceCurve
    margins: tuple[float, float]
    r2: float
    mse: float


def fit_plane(x: ArrayLike, y: ArrayLike, alpha: ArrayLike) -> PlaneFit:
    """Least-squares plane through measured points, margins by Student's t (SDSL section 4.2, Table 3).

    Raises PlanError for fewer than four points, or when x and y do not span a plane (a single target, say).
    """
    x, y, alpha = (np.asarray(v, float) for v in (x, y, alpha))
    if len(x) > 3 and np.ptp(y) == 0:
        raise PlanError(
            f"all {len(x)} points have the same target perplexity {y[0]:g}: B and C cannot be told apart; "
            "measure a second target"
        )
    if len(x) > 3 and np.ptp(x) == 0:
        raise PlanError(
            f"all {len(x)} points have the same draft perplexity {x[0]:g}: A and C cannot be told apart; "
            "measure a second draft"
        )
    fit = least_squares(np.column_stack([x, y, np.ones_like(x)]), alpha)
    plane = AcceptancePlane(*(float(v) for v in fit.coefficients))
    return PlaneFit(plane, fit, (float(x.min()), float(x.max())), (float(y.min()), float(y.max())))


def fit_measurements(measurements: Sequence[Measurement]) -> PlaneFit:
    """Plane through measured pairs (see ``fit_plane``)."""
    return fit_plane(
        [point.x for point in measurements],
        [point.y for point in measurements],
        [point.alpha for point in measurements],
    )


def fit_log_plane(x: ArrayLike, y: ArrayLike, alpha: ArrayLike) -> tuple[LogPlane, Regression]:
    """Least-squares LogPlane; raises PlanError like ``least_squares``."""
    design = np.column_stack([np.log(x), np.log(y), np.ones_like(np.asarray(x, float))])
    fit = least_squares(design, np.asarray(alpha, float))
    return LogPlane(*(float(v) for v in fit.coefficients)), fit


def fit_curve(kind: CurveKind, x: ArrayLike, alpha: ArrayLike) -> CurveFit:
    """Fit alpha(x) of one target (SDSL Table 4); the power form by Gauss-Newton on alpha itself, not on its
    log.

    Raises PlanError for fewer than three points or equal x.
    """
    x, alpha = np.asarray(x, float), np.asarray(alpha, float)
    if len(x) < 3:
        raise PlanError(f"a curve alpha(x) needs at least 3 points, got {len(x)}")
    regressor = x if kind == "linear" else np.log(x)
    ones = np.ones_like(x)
    if kind != "power":
        fit = least_squares(np.column_stack([regressor, ones]), alpha)
        first, second = (float(v) for v in fit.coefficients)
        margin = (float(fit.margins[0]), float(fit.margins[1]))
        return CurveFit(AcceptanceCurve(kind, first, second), margin, fit.r2, fit.mse)
    start = least_squares(np.column_stack([regressor, ones]), np.log(alpha))
    theta = np.array([np.exp(start.coefficients[1]), start.coefficients[0]])
    for _ in range(50):
        model = theta[0] * x ** theta[1]
        jacobian = np.column_stack([model / theta[0], model * regressor])
        step = np.linalg.lstsq(jacobian, alpha - model, rcond=None)[0]
        theta = theta + step
        if np.max(np.abs(step) / (np.abs(theta) + 1e-12)) < 1e-13:
            break
    model = theta[0] * x ** theta[1]
    jacobian = np.column_stack([model / theta[0], model * regressor])
    residuals = alpha - model
    squares = float(residuals @ residuals)
    covariance = np.linalg.inv(jacobian.T @ jacobian) * squares / (len(x) - 2)
    margins = np.sqrt(np.diag(covariance)) * quantile95(len(x) - 2)
    centred = alpha - alpha.mean()
    return CurveFit(
        AcceptanceCurve("power", float(theta[0]), float(theta[1])),
        (float(margins[0]), float(margins[1])),
        1.0 - squares / float(centred @ centred),
        squares / len(x),
    )
