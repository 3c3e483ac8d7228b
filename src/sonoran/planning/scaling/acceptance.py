"""Acceptance laws: the plane alpha = A x + B y + C, and one-variable curves for a single target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit

from sonoran.errors import PlanError
from sonoran.planning.scaling.laws import Array


@dataclass(frozen=True, slots=True)
class Regression:
    """Result of a least-squares fit; arrays have one entry per coefficient, residuals one per observation."""

    coefficients: Array
    standard_errors: Array
    margins: Array  # half-widths of the 95 % intervals
    covariance: Array  # [p, p]
    residuals: Array
    r2: float
    mse: float  # mean squared residual, divided by n

    @property
    def dof(self) -> int:
        """Observations minus coefficients."""
        return len(self.residuals) - len(self.coefficients)

    @property
    def residual_sd(self) -> float:
        """Standard deviation of the residuals with ``dof`` in the denominator."""
        return float(np.sqrt(self.residuals @ self.residuals / self.dof))


def quantile95(dof: int | None) -> float:
    """Two-sided 95 % quantile of Student's t, or of the normal law for ``None``."""
    return float(ndtri(0.975) if dof is None else stdtrit(dof, 0.975))


def least_squares(
    design: Array, response: Array, *, errors: Literal["classical", "hc3"] = "classical", normal: bool = False
) -> Regression:
    """Fit ``response`` [n] on ``design`` [n, p]. ``normal`` takes the normal quantile instead of Student's t.

    Raises PlanError when there are too few observations or the columns are linearly dependent.
    """
    n, p = design.shape
    if n <= p:
        raise PlanError(f"a fit of {p} coefficients needs at least {p + 1} points, got {n}")
    # Columns of size 1e11 beside columns of ones: scale first, or the rank test means nothing.
    scale = np.sqrt((design**2).mean(axis=0))
    if not np.all(scale > 0) or np.linalg.matrix_rank(design / scale, tol=1e-9 * np.sqrt(n)) < p:
        raise PlanError(f"the {p} coefficients cannot be told apart: the regressors are linearly dependent")
    scaled = design / scale
    bread = np.linalg.inv(scaled.T @ scaled)
    coefficients = bread @ (scaled.T @ response)
    residuals = response - scaled @ coefficients
    if errors == "hc3":
        leverage = np.einsum("ij,jk,ik->i", scaled, bread, scaled)
        weights = (residuals / (1.0 - leverage)) ** 2
        covariance = bread @ (scaled.T * weights) @ scaled @ bread
    else:
        covariance = bread * float(residuals @ residuals) / (n - p)
    covariance = covariance / np.outer(scale, scale)
    standard = np.sqrt(np.diag(covariance))
    centred = response - response.mean()
    total = float(centred @ centred)
    squares = float(residuals @ residuals)
    return Regression(
        coefficients=coefficients / scale,
        standard_errors=standard,
        margins=standard * quantile95(None if normal else n - p),
        covariance=covariance,
        residuals=residuals,
        r2=1.0 - squares / total if total > 0 else float("nan"),
        mse=squares / n,
    )


@dataclass(frozen=True, slots=True)
class AlphaEstimate:
    """alpha with two intervals: the paper's, from the misfit over gamma, and a bootstrap over prompts."""

    alpha: float
    gammas: tuple[int, ...]
    tokens_per_round: tuple[float, ...]  # mean accepted + 1
    residuals: tuple[float, ...]
    fit_error: float | None  # standard error from the residuals; None with a single gamma
    fit_interval: tuple[float, float] | None
    bootstrap_interval: tuple[float, float] | None  # None with fewer than two prompts


def alpha_from_means(mean_accepted: Mapping[int, float]) -> float:
    """Least-squares alpha from the mean accepted length at each gamma.

    The fitted quantity is mean accepted + 1: the paper names three different ones, and only this one can
    follow (1 - a**(g + 1)) / (1 - a), which counts the bonus token. Raises PlanError.
    """
    gammas = sorted(mean_accepted)
    means = np.array([[mean_accepted[g] for g in gammas]], float)
    _check(gammas, means)
    return float(_solve(np.array(gammas, float), means + 1.0)[0])


def estimate_alpha(
    accepted: Mapping[int, Sequence[Sequence[float]]], *, resamples: int = 1000, seed: int = 0
) -> AlphaEstimate:
    """Estimate alpha from ``accepted[gamma][prompt]``, the accepted lengths of that prompt's rounds.

    The bootstrap draws whole prompts, since the rounds of one text are not independent; when every gamma has
    the same prompts, the same ones are drawn for all. Raises PlanError for lengths outside [0, gamma] or
    empty prompts.
    """
    gammas = sorted(accepted)
    sums: list[Array] = []
    counts: list[Array] = []
    for gamma in gammas:
        prompts = [np.asarray(lengths, float) for lengths in accepted[gamma]]
        if not prompts or any(len(p) == 0 for p in prompts):
            raise PlanError(f"gamma {gamma}: every prompt needs at least one round")
        flat = np.concatenate(prompts)
        if not np.all((flat >= 0) & (flat <= gamma)):
            raise PlanError(
                f"gamma {gamma}: accepted lengths must lie in [0, {gamma}], got {flat.min():g} to "
                f"{flat.max():g}"
            )
        sums.append(np.array([p.sum() for p in prompts]))
        counts.append(np.array([float(len(p)) for p in prompts]))
    means = np.array([[s.sum() / c.sum() for s, c in zip(sums, counts, strict=True)]])
    _check(gammas, means)
    grid = np.array(gammas, float)
    alpha = float(_solve(grid, means + 1.0)[0])
    model, slope = _model(grid, np.array([alpha]))
    residuals = model[0] - (means[0] + 1.0)
    error = None
    if len(gammas) > 1:
        error = float(np.sqrt(residuals @ residuals / (len(gammas) - 1) / (slope[0] @ slope[0])))
    normal = quantile95(None)
    return AlphaEstimate(
        alpha=alpha,
        gammas=tuple(gammas),
        tokens_per_round=tuple(float(v) + 1.0 for v in means[0]),
        residuals=tuple(float(v) for v in residuals),
        fit_error=error,
        fit_interval=None if error is None else (alpha - normal * error, alpha + normal * error),
        bootstrap_interval=_bootstrap(grid, sums, counts, resamples, seed),
    )


def _check(gammas: Sequence[int], means: Array) -> None:
    if not gammas:
        raise PlanError("alpha cannot be estimated: no accepted lengths")
    for gamma, mean in zip(gammas, means[0], strict=True):
        if gamma < 1:
            raise PlanError(f"gamma must be at least 1, got {gamma}")
        if not 0 <= mean <= gamma:
            raise PlanError(f"gamma {gamma}: the mean accepted length must lie in [0, {gamma}], got {mean:g}")
    if np.all(means[0] == 0) or np.all(means[0] == np.array(gammas)):
        raise PlanError("alpha cannot be estimated: every draft token was rejected, or every one accepted")


def _model(gammas: Array, alpha: Array) -> tuple[Array, Array]:
    """Tokens per round and their derivative in alpha, both [alphas, gammas], as polynomials: no 0 / 0 at
    alpha = 1.
    """
    powers = np.arange(int(gammas.max()) + 1, dtype=float)
    terms = alpha[:, None] ** powers
    slopes = powers * np.where(powers > 0, alpha[:, None] ** np.maximum(powers - 1, 0), 0.0)
    index = gammas.astype(int)
    return np.cumsum(terms, axis=1)[:, index], np.cumsum(slopes, axis=1, dtype=float)[:, index]


def _solve(gammas: Array, tokens: Array) -> Array:
    """Minimise the squared residuals for every row of ``tokens`` [n, gammas] by bisection on the derivative.

    Every gamma alone has its root in [0, 1] and the model grows with alpha, so the derivative of the sum is
    negative below all roots and positive above them.
    """
    low, high = np.zeros(len(tokens)), np.ones(len(tokens))
    for _ in range(60):
        middle = (low + high) / 2
        model, slope = _model(gammas, middle)
        falling = ((model - tokens) * slope).sum(axis=1) < 0
        low, high = np.where(falling, middle, low), np.where(falling, high, middle)
    return np.asarray((low + high) / 2)


def _bootstrap(
    gammas: Array, sums: list[Array], counts: list[Array], resamples: int, seed: int
) -> tuple[float, float] | None:
    if resamples < 1 or min(len(s) for s in sums) < 2:
        return None
    generator = np.random.default_rng(seed)
    paired = len({len(s) for s in sums}) == 1
    shared = generator.integers(0, len(sums[0]), (resamples, len(sums[0])))
    columns = []
    for total, count in zip(sums, counts, strict=True):
        draw = shared if paired else generator.integers(0, len(total), (resamples, len(total)))
        columns.append(total[draw].sum(axis=1) / count[draw].sum(axis=1))
    low, high = np.percentile(_solve(gammas, np.column_stack(columns) + 1.0), [2.5, 97.5])
    return float(low), float(high)


CurveKind = Literal["linear", "logarithmic", "power"]
CURVE_KINDS: tuple[CurveKind, ...] = ("linear", "logarithmic", "power")


class AcceptanceLaw(Protocol):
    """Expected acceptance rate per drafted token, from the perplexities x (draft) and y (target)."""

    def alpha(self, x: ArrayLike, y: ArrayLike) -> Array:
        """Not clipped: values outside (0, 1) mean that the law does not apply there."""
        ...

    def slope(self, x: ArrayLike, y: ArrayLike) -> Array:
        """d alpha / d x."""
        ...


@dataclass(frozen=True, slots=True)
class AcceptancePlane:
    """alpha = a x + b y + c (SDSL eq. 5); fields may be arrays of planes that broadcast (bootstrap)."""

    a: float | Array
    b: float | Array
    c: float | Array

    def alpha(self, x: ArrayLike, y: ArrayLike) -> Array:
        """Acceptance rate, not clipped."""
        return np.asarray(self.a * np.asarray(x, float) + self.b * np.asarray(y, float) + self.c)

    def slope(self, x: ArrayLike, y: ArrayLike) -> Array:
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

    def alpha(self, x: ArrayLike, y: ArrayLike) -> Array:
        """Acceptance rate, not clipped."""
        return np.asarray(self.a * np.log(x) + self.b * np.log(y) + self.c)

    def slope(self, x: ArrayLike, y: ArrayLike) -> Array:
        """d alpha / d x."""
        return np.asarray(self.a / np.asarray(x, float))


@dataclass(frozen=True, slots=True)
class AcceptanceCurve:
    """alpha(x) of one target: ``first x + second``, ``first ln x + second`` or ``first x ** second``."""

    kind: CurveKind
    first: float
    second: float

    def alpha(self, x: ArrayLike, y: ArrayLike = 0.0) -> Array:
        """Acceptance rate, not clipped; y is ignored."""
        value = np.asarray(x, float)
        if self.kind == "linear":
            return np.asarray(self.first * value + self.second)
        if self.kind == "logarithmic":
            return np.asarray(self.first * np.log(value) + self.second)
        return np.asarray(self.first * value**self.second)

    def slope(self, x: ArrayLike, y: ArrayLike = 0.0) -> Array:
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
