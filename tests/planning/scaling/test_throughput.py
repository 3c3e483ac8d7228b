"""Closed forms against the printed vectors, brute force and arbitrary precision."""

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.errors import PlanError
from sonoran.planning.scaling.laws import (
    autoregressive_throughput,
    best_integer_gamma,
    lambert_w,
    optimal_gamma,
    optimal_throughput,
    speedup,
    throughput,
    tokens_per_round,
)

VECTORS = [
    (0.5, 1e10, 1e8, 5.2079829540, 9.376405465028e-11, 1.8752810930, 5),
    (0.65, 1.3e10, 1.2e8, 8.1350039632, 1.002171290483e-10, 2.6056453553, 8),
    (0.7, 7e10, 1e9, 8.4385801352, 2.051477645164e-11, 2.8720687032, 8),
    (0.8, 7e10, 8e9, 5.3810597254, 1.678980998952e-11, 2.3505733985, 5),
    (0.9, 4.05e11, 8e9, 19.1438579815, 7.885432407460e-12, 6.3872002500, 19),
    (0.3, 1e9, 5e8, 0.0259730739, 5.001026127313e-10, 1.0002052255, 1),
]


@pytest.mark.parametrize("alpha,m,n,gamma,rate,gain,whole", VECTORS)
def test_vectors(alpha, m, n, gamma, rate, gain, whole):
    assert optimal_gamma(alpha, m, n) == pytest.approx(gamma, abs=1e-9)
    assert optimal_throughput(alpha, m, n) == pytest.approx(rate, rel=1e-12, abs=0)
    assert optimal_throughput(alpha, m, n) / autoregressive_throughput(m) == pytest.approx(gain, abs=1e-9)
    assert best_integer_gamma(alpha, m, n) == whole


def test_where_the_textbook_form_underflows():
    assert optimal_gamma(0.6, 2000, 1) == pytest.approx(12.578836072638524, rel=1e-13)


@pytest.mark.parametrize("ratio", [1.001, 3.0, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("alpha", [0.01, 0.2, 0.6, 0.95, 0.999])
def test_lambert_branch_against_sixty_digits(alpha, ratio):
    with mp.workdps(60):
        w = mp.lambertw(-(mp.mpf(alpha) ** (mp.mpf(ratio) - 1)) / mp.e, -1).real
        gamma = float(mp.log(-w) / -mp.log(mp.mpf(alpha)) - 1)
        rate = float(-mp.log(mp.mpf(alpha)) / (2 * (1 - mp.mpf(alpha)) * -w))
    assert lambert_w(alpha, ratio, 1) == pytest.approx(float(w), rel=1e-12)
    assert optimal_gamma(alpha, ratio, 1) == pytest.approx(gamma, rel=1e-12, abs=1e-12)
    assert optimal_throughput(alpha, ratio, 1) == pytest.approx(rate, rel=1e-12, abs=0)


@given(alpha=st.floats(0.05, 0.97), ratio=st.floats(2.0, 1e5))
def test_optimum_beats_its_neighbours(alpha, ratio):
    gamma = float(optimal_gamma(alpha, ratio, 1.0))
    if gamma <= 0.01:
        return
    best = throughput(alpha, gamma, ratio, 1.0)
    assert best == pytest.approx(float(optimal_throughput(alpha, ratio, 1.0)), rel=1e-10, abs=0)
    assert best >= throughput(alpha, gamma * 1.01, ratio, 1.0)
    assert best >= throughput(alpha, gamma * 0.99, ratio, 1.0)


@given(alpha=st.floats(0.05, 0.95), ratio=st.floats(1.1, 1e4))
def test_whole_gamma_is_the_best_of_all(alpha, ratio):
    chosen = best_integer_gamma(alpha, ratio, 1.0, minimum=0)
    rates = throughput(alpha, np.arange(0, 400), ratio, 1.0)
    assert rates[chosen] == pytest.approx(rates.max(), rel=1e-12, abs=0)


def test_gamma_zero_means_no_speculation():
    assert best_integer_gamma(0.3, 1e9, 5e8, minimum=0) == 0
    assert speedup(0.3, 1, 1e9, 5e8) < 1


def test_tokens_per_round_is_the_geometric_sum():
    assert tokens_per_round(0.8, 3) == pytest.approx(1 + 0.8 + 0.64 + 0.512)
    assert tokens_per_round(1 - 1e-9, 3) == pytest.approx(4.0, abs=1e-7)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, 1.2, float("nan")])
def test_impossible_alpha(alpha):
    with pytest.raises(PlanError, match="alpha"):
        best_integer_gamma(alpha, 1e9, 1e8)
