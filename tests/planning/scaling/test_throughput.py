"""Closed forms against the printed vectors, brute force and arbitrary precision."""

import mpmath as mp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.planning.scaling.costs import PUBLISHED_COST
from sonoran.planning.scaling.rates import best_gamma, sd_rate
from sonoran.planning.scaling.throughput import optimal_gamma, optimal_throughput, tokens_per_round
from sonoran.theory import speedup as theory

VECTORS = [
    (0.5, 1e10, 1e8, 5.2079829540, 9.376405465028e-11, 1.8752810930, 5),
    (0.65, 1.3e10, 1.2e8, 8.1350039632, 1.002171290483e-10, 2.6056453553, 8),
    (0.7, 7e10, 1e9, 8.4385801352, 2.051477645164e-11, 2.8720687032, 8),
    (0.8, 7e10, 8e9, 5.3810597254, 1.678980998952e-11, 2.3505733985, 5),
    (0.9, 4.05e11, 8e9, 19.1438579815, 7.885432407460e-12, 6.3872002500, 19),
    (0.3, 1e9, 5e8, 0.0259730739, 5.001026127313e-10, 1.0002052255, 1),
]


def throughput(alpha, gamma, target, draft):
    """T(gamma) in tokens per FLOP (SDSL eq. 3)."""
    return (1 - alpha ** (gamma + 1)) / (1 - alpha) / (2 * (target + gamma * draft))


@pytest.mark.parametrize("alpha,m,n,gamma,rate,gain,whole", VECTORS)
def test_vectors(alpha, m, n, gamma, rate, gain, whole):
    assert optimal_gamma(alpha, m, n) == pytest.approx(gamma, abs=1e-9)
    assert optimal_throughput(alpha, m, n) == pytest.approx(rate, rel=1e-12, abs=0)
    assert 2 * m * optimal_throughput(alpha, m, n) == pytest.approx(gain, abs=1e-9)
    assert best_gamma(PUBLISHED_COST, None, alpha, m, n)[0] == whole


def test_where_the_textbook_form_underflows():
    assert optimal_gamma(0.6, 2000, 1) == pytest.approx(12.578836072638524, rel=1e-13)


@pytest.mark.parametrize("ratio", [1.001, 3.0, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("alpha", [0.01, 0.2, 0.6, 0.95, 0.999])
def test_lambert_branch_against_sixty_digits(alpha, ratio):
    with mp.workdps(60):
        w = mp.lambertw(-(mp.mpf(alpha) ** (mp.mpf(ratio) - 1)) / mp.e, -1).real
        gamma = float(mp.log(-w) / -mp.log(mp.mpf(alpha)) - 1)
        rate = float(-mp.log(mp.mpf(alpha)) / (2 * (1 - mp.mpf(alpha)) * -w))
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


@given(alpha=st.floats(0.05, 0.9), ratio=st.floats(1.1, 1e3))
def test_whole_gamma_is_next_to_the_continuous_one(alpha, ratio):
    chosen, gain = best_gamma(PUBLISHED_COST, None, alpha, ratio, 1.0)
    assert abs(chosen - max(1.0, float(optimal_gamma(alpha, ratio, 1.0)))) < 1.0 or chosen == 64
    assert gain == pytest.approx(2 * ratio * throughput(alpha, chosen, ratio, 1.0), rel=1e-12)


def test_a_draft_of_half_the_target_does_not_pay():
    assert best_gamma(PUBLISHED_COST, None, 0.3, 1e9, 5e8)[1] < 1


@pytest.mark.parametrize("alpha,gamma,m,n", [(0.7, 8, 7e10, 1e9), (0.3, 1, 1e9, 5e8)])
def test_sd_under_the_published_cost_is_equation_3(alpha, gamma, m, n):
    rate = sd_rate(PUBLISHED_COST, alpha, m, n, gamma)
    assert rate == pytest.approx(throughput(alpha, gamma, m, n), rel=1e-12, abs=0)


@given(alpha=st.floats(0.001, 0.999), gamma=st.integers(0, 64))
def test_tokens_per_round_are_those_of_the_theory(alpha, gamma):
    assert tokens_per_round(alpha, gamma) == pytest.approx(theory.tokens_per_round(alpha, gamma), rel=1e-12)


def test_tokens_per_round_near_certain_acceptance():
    assert tokens_per_round(1 - 1e-9, 3) == pytest.approx(4.0, abs=1e-7)
