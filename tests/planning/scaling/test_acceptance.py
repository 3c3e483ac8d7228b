"""Planes and curves: exact recovery, statistics, refusals."""

import numpy as np
import pytest

from sonoran.errors import PlanError
from sonoran.planning.scaling.acceptance import (
    CURVE_KINDS,
    PUBLISHED_PLANE,
    AcceptanceCurve,
    fit_curve,
    fit_log_plane,
    fit_plane,
)
from sonoran.planning.scaling.models import published_measurements
from sonoran.planning.scaling.regression import least_squares


def test_plane_is_recovered_exactly():
    x, y = (v.ravel() for v in np.meshgrid(np.linspace(10, 30, 5), np.linspace(8, 16, 4)))
    fit = fit_plane(x, y, PUBLISHED_PLANE.alpha(x, y))
    assert (fit.plane.a, fit.plane.b, fit.plane.c) == pytest.approx((-0.0067, 0.012971, 0.642084), abs=1e-12)
    assert fit.regression.r2 == pytest.approx(1.0)
    assert fit.x_range == (10, 30)
    assert fit.y_range == (8, 16)


@pytest.mark.parametrize(
    "kind,first,second", [("linear", -0.006, 0.8), ("logarithmic", -0.15, 1.1), ("power", 1.3, -0.24)]
)
def test_curves_are_recovered_and_differentiated(kind, first, second):
    curve = AcceptanceCurve(kind, first, second)
    x = np.linspace(12, 30, 8)
    noise = 1e-5 * np.cos(np.arange(8))
    fit = fit_curve(kind, x, curve.alpha(x) + noise)
    assert (fit.curve.first, fit.curve.second) == pytest.approx((first, second), rel=2e-3)
    assert fit.r2 > 0.9999
    numeric = (curve.alpha(20 + 1e-5) - curve.alpha(20 - 1e-5)) / 2e-5
    assert curve.slope(20.0) == pytest.approx(float(numeric), rel=1e-6)


def test_power_fit_is_a_minimum_of_the_squares():
    points = [p for p in published_measurements() if p.target == "Qwen2.5-72B"]
    x, alpha = np.array([p.x for p in points]), np.array([p.alpha for p in points])
    fit = fit_curve("power", x, alpha).curve

    def squares(first, second):
        return float(((first * x**second - alpha) ** 2).sum())

    best = squares(fit.first, fit.second)
    for shift in (1 + 1e-3, 1 - 1e-3):
        assert squares(fit.first * shift, fit.second) > best
        assert squares(fit.first, fit.second * shift) > best


def test_log_plane_of_the_paper_data():
    points = published_measurements()
    law, fit = fit_log_plane([p.x for p in points], [p.y for p in points], [p.alpha for p in points])
    assert (law.a, law.b, law.c) == pytest.approx((-0.133174, 0.166064, 0.647552), abs=1e-6)
    assert fit.r2 == pytest.approx(0.6178, abs=5e-5)


def test_too_little_to_fit():
    with pytest.raises(PlanError, match="at least 4 points, got 3"):
        fit_plane([1, 2, 3], [3, 1, 2], [0.1, 0.2, 0.3])
    with pytest.raises(PlanError, match="same target perplexity 8"):
        fit_plane([10, 11, 12, 13], [8, 8, 8, 8], [0.6, 0.5, 0.4, 0.3])
    with pytest.raises(PlanError, match="same draft perplexity 9"):
        fit_plane([9, 9, 9, 9], [8, 7, 6, 5], [0.6, 0.5, 0.4, 0.3])
    with pytest.raises(PlanError, match="linearly dependent"):
        fit_plane([10, 11, 12, 13], [20, 22, 24, 26], [0.6, 0.5, 0.4, 0.3])
    for kind in CURVE_KINDS:
        with pytest.raises(PlanError):
            fit_curve(kind, [10, 11], [0.6, 0.5])
        with pytest.raises(PlanError):
            fit_curve(kind, [10, 10, 10], [0.6, 0.5, 0.5])


def test_hc3_matches_its_definition():
    generator = np.random.default_rng(1)
    design = np.column_stack([generator.normal(size=30), np.ones(30)])
    response = design @ [2.0, 1.0] + generator.normal(size=30) * (1 + np.abs(design[:, 0]))
    fit = least_squares(design, response, errors="hc3")
    bread = np.linalg.inv(design.T @ design)
    leverage = np.diag(design @ bread @ design.T)
    meat = sum(
        np.outer(row, row) * (e / (1 - h)) ** 2
        for row, e, h in zip(design, fit.residuals, leverage, strict=True)
    )
    assert fit.covariance == pytest.approx(bread @ meat @ bread, rel=1e-9)
