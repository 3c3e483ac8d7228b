"""Least squares with standard errors and 95 % intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtri, stdtrit

from sonoran.errors import PlanError
from sonoran.theory.distributions import Floats


@dataclass(frozen=True, slots=True)
class Regression:
    """Result of a least-squares fit; arrays have one entry per coefficient, residuals one per observation."""

    coefficients: Floats
    standard_errors: Floats
    margins: Floats  # half-widths of the 95 % intervals
    covariance: Floats  # [p, p]
    residuals: Floats
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


def least_squares(
    design: Floats,
    response: Floats,
    *,
    errors: Literal["classical", "hc3"] = "classical",
    normal: bool = False,
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


def quantile95(dof: int | None) -> float:
    """Two-sided 95 % quantile of Student's t, or of the normal law for ``None``."""
    return float(ndtri(0.975) if dof is None else stdtrit(dof, 0.975))
