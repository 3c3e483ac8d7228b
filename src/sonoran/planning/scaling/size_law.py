"""Rules of thumb for N*: the affine law of SDSL section 5, its regressions, and what they lose outside their
range.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sonoran.planning.scaling.laws import Laws
from sonoran.planning.scaling.optimum import optimal_sizes
from sonoran.planning.scaling.regression import Regression, least_squares
from sonoran.theory.distributions import Floats

LAW_RANGE = (13e9, 110e9)
"""Target sizes over which the affine law was fitted."""

DATA_RANGE = (1e12, 1e14)
"""Training tokens that reproduce Tables 8 and 9. Table 7 prints 1e12 to 1e13, which does not."""


@dataclass(frozen=True, slots=True)
class AffineLaw:
    """N* = mu M + m0. A tangent, not an asymptote: the full optimum grows like a power of M below 1."""

    mu: float
    m0: float

    def size(self, target: ArrayLike) -> Floats:
        """N* in parameters."""
        return np.asarray(self.mu * np.asarray(target, float) + self.m0)


PUBLISHED_AFFINE = AffineLaw(2.71e-3, 8.71e7)
"""SDSL Table 9."""

POWER_LAW = (154.4, 0.578)
"""N* = 154.4 M**0.578, fitted to the same 288 optima: R2 0.9986 against 0.988 for the line."""


@dataclass(frozen=True, slots=True)
class OptimaGrid:
    """N* on a full grid of targets and training tokens, flattened."""

    target: Floats
    draft_tokens: Floats
    target_tokens: Floats
    draft: Floats


def optima_grid(
    laws: Laws,
    targets: tuple[float, float, int] = (*LAW_RANGE, 8),
    tokens: tuple[float, float, int] = (*DATA_RANGE, 6),
) -> OptimaGrid:
    """N* on log-spaced grids (low, high, points); both token counts run over ``tokens`` (SDSL Table 7: 288
    points).
    """
    m = np.geomspace(*targets)
    d = np.geomspace(*tokens)
    target, draft_tokens, target_tokens = (v.ravel() for v in np.meshgrid(m, d, d, indexing="ij"))
    draft = optimal_sizes(laws.loss, laws.law, target, target_tokens, draft_tokens)
    return OptimaGrid(target, draft_tokens, target_tokens, draft)


def fit_affine(grid: OptimaGrid) -> Regression:
    """Table 9: coefficients mu, m0 of N* on M, HC3 errors, Student's t.

    The grid is deterministic, so the intervals measure curvature, not what is unknown about the law.
    """
    design = np.column_stack([grid.target, np.ones_like(grid.target)])
    return least_squares(design, grid.draft, errors="hc3")


def fit_data_terms(grid: OptimaGrid) -> Regression:
    """Table 8: N*/M = mu + m0/M + g ln D + g' ln D'; in that order, HC3 errors, normal quantile."""
    design = np.column_stack(
        [np.ones_like(grid.target), 1.0 / grid.target, np.log(grid.draft_tokens), np.log(grid.target_tokens)]
    )
    return least_squares(design, grid.draft / grid.target, errors="hc3", normal=True)
