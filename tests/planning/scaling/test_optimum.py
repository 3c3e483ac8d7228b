"""The optimal size: reference values, brute force, shapes, flatness, other laws."""

import dataclasses

import numpy as np
import pytest

from sonoran.planning.scaling.acceptance import AcceptanceCurve, AcceptancePlane
from sonoran.planning.scaling.loss import HOFFMANN
from sonoran.planning.scaling.models import published_laws
from sonoran.planning.scaling.optimum import envelope, flat_range, optimal_sizes, search
from sonoran.planning.scaling.regression import least_squares
from sonoran.planning.scaling.size_law import (
    POWER_LAW,
    PUBLISHED_AFFINE,
    fit_affine,
    fit_data_terms,
    optima_grid,
)
from sonoran.planning.scaling.throughput import optimal_gamma

LAWS = published_laws()


def best(target, target_tokens, draft_tokens, laws=LAWS):
    return optimal_sizes(laws.loss, laws.acceptance, target, target_tokens, draft_tokens)


@pytest.mark.parametrize(
    "m,d,size,alpha,rate,gamma",
    [
        (13e9, 1e12, 111875953.5, 0.64621199, 9.97189314e-11, 8.190897),
        (70e9, 15e12, 282246437.8, 0.65737200, 1.98413424e-11, 10.189958),
        (70e9, 10**12.5, 287410987.6, 0.65801116, 1.98620820e-11, 10.169040),
    ],
)
def test_reference_vectors(m, d, size, alpha, rate, gamma):
    n = float(best(m, d, d))
    assert n == pytest.approx(size, rel=1e-7)
    assert LAWS.alpha(m, d, n, d) == pytest.approx(alpha, abs=1e-8)
    assert envelope(LAWS.loss, LAWS.acceptance, m, d, n, d) == pytest.approx(rate, rel=5e-9, abs=0)
    assert optimal_gamma(LAWS.alpha(m, d, n, d), m, n) == pytest.approx(gamma, abs=1e-6)


@pytest.mark.parametrize(
    "billions,millions",
    [(1, 29.0), (7, 78.2), (13, 109.5), (30, 175.4), (110, 376.5), (405, 838.9), (1000, 1488.1)],
)
def test_sizes_of_the_reference(billions, millions):
    assert best(billions * 1e9, 10**12.5, 10**12.5) / 1e6 == pytest.approx(millions, abs=0.06)


def test_against_brute_force():
    sizes = np.geomspace(1e7, 1e10, 200001)
    rates = envelope(LAWS.loss, LAWS.acceptance, 5e9, 2e12, sizes, 4e12)
    assert best(5e9, 2e12, 4e12) == pytest.approx(sizes[np.argmax(rates)], rel=1e-4)


def test_other_constants():
    hoffmann = dataclasses.replace(LAWS, loss=HOFFMANN)
    assert best(70e9, 10**12.5, 10**12.5, hoffmann) / 1e6 == pytest.approx(265.5, abs=0.06)
    curve = dataclasses.replace(LAWS, acceptance=AcceptanceCurve("logarithmic", -0.149112, 1.027021))
    assert best(70e9, 10**12.5, 10**12.5, curve) / 1e6 == pytest.approx(523.8, abs=0.1)


def test_broadcasting_over_problems_and_planes():
    sizes = best(np.array([[13e9], [70e9]]), 1e12, np.array([1e12, 1e13, 1e14]))
    assert sizes.shape == (2, 3)
    assert sizes[1, 0] == pytest.approx(float(best(70e9, 1e12, 1e12)), rel=1e-12)
    planes = AcceptancePlane(
        np.array([-0.0067, -0.008]), np.array([0.012971, 0.012]), np.array([0.642084, 0.66])
    )
    both = optimal_sizes(LAWS.loss, planes, 70e9, 1e12, 1e12)
    assert both[0] == pytest.approx(float(best(70e9, 1e12, 1e12)), rel=1e-12)
    assert both[1] != both[0]


def test_no_optimum_is_nan():
    hopeless = AcceptancePlane(-0.0067, 0.0, 0.0)
    assert np.isnan(optimal_sizes(LAWS.loss, hopeless, 70e9, 1e12, 1e12))


def test_flatness_of_the_reference():
    def curve(n):
        return envelope(LAWS.loss, LAWS.acceptance, 70e9, 10**12.5, n, 10**12.5)

    n = float(best(70e9, 10**12.5, 10**12.5))
    one = flat_range(curve, n, 1e6, 7e10, 0.99)
    five = flat_range(curve, n, 1e6, 7e10, 0.95)
    assert one == pytest.approx((154e6, 524e6), rel=5e-3)
    assert five == pytest.approx((71e6, 1067e6), rel=5e-3)
    assert curve(np.array(one)) == pytest.approx(0.99 * float(curve(np.array([n]))[0]), rel=1e-6, abs=0)


def test_flat_range_stops_at_the_end_of_the_search():
    assert flat_range(lambda n: np.ones_like(n), 10.0, 2.0, 50.0, 0.99) == (2.0, 50.0)


def test_search_finds_a_kink():
    def rate(n, gamma):
        return -np.abs(np.log(n / 3e8)) - np.abs(gamma - 7)

    size, gamma, value = search(rate, 1e6, 1e10)
    assert (size, gamma) == (pytest.approx(3e8, rel=1e-5), 7)
    assert value == pytest.approx(0, abs=1e-5)


def test_size_law_regressions():
    grid = optima_grid(LAWS)
    assert len(grid.draft) == 288
    affine = fit_affine(grid)
    assert affine.coefficients == pytest.approx([2.71e-3, 8.71e7], rel=1e-3)
    logarithms = np.column_stack([np.ones_like(grid.target), np.log(grid.target)])
    constant, exponent = least_squares(logarithms, np.log(grid.draft)).coefficients
    assert (np.exp(constant), exponent) == pytest.approx(POWER_LAW, rel=6e-3)
    assert POWER_LAW[0] * 70e9 ** POWER_LAW[1] == pytest.approx(287e6, rel=0.01)
    assert fit_data_terms(grid).coefficients[2] < 0
    printed = fit_affine(optima_grid(LAWS, tokens=(1e12, 1e13, 6)))
    assert printed.coefficients == pytest.approx([2.7407e-3, 8.8039e7], rel=1e-4)
    assert PUBLISHED_AFFINE.size(70e9) == pytest.approx(276.8e6)
