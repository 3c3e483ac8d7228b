"""alpha from accepted lengths: exact recovery, simulation, intervals, refusals."""

import numpy as np
import pytest

from sonoran.errors import PlanError
from sonoran.planning.scaling.estimate import alpha_from_means, estimate_alpha
from sonoran.planning.scaling.throughput import tokens_per_round


@pytest.mark.parametrize("alpha", [0.05, 0.55, 0.75, 0.98])
def test_exact_means(alpha):
    means = {g: float(tokens_per_round(alpha, g)) - 1 for g in range(1, 10)}
    assert alpha_from_means(means) == pytest.approx(alpha, abs=1e-12)
    assert alpha_from_means({4: means[4]}) == pytest.approx(alpha, abs=1e-12)


def simulate(alphas, gammas, rounds, seed):
    generator = np.random.default_rng(seed)
    return {
        g: [np.minimum(generator.geometric(1 - a, rounds) - 1, g).tolist() for a in alphas] for g in gammas
    }


def test_simulated_rounds_are_covered():
    estimate = estimate_alpha(simulate([0.7] * 40, (1, 3, 5, 7), 50, 3))
    assert estimate.alpha == pytest.approx(0.7, abs=0.01)
    assert estimate.bootstrap_interval[0] < 0.7 < estimate.bootstrap_interval[1]
    assert len(estimate.residuals) == 4
    assert estimate.fit_interval[0] < estimate.alpha < estimate.fit_interval[1]


def test_prompts_that_differ_widen_the_bootstrap():
    alike = estimate_alpha(simulate([0.7] * 40, (4,), 50, 5)).bootstrap_interval
    unlike = estimate_alpha(simulate(np.linspace(0.4, 0.95, 40), (4,), 50, 5)).bootstrap_interval
    assert unlike[1] - unlike[0] > 2 * (alike[1] - alike[0])


def test_one_gamma_has_no_fit_error_and_one_prompt_no_bootstrap():
    estimate = estimate_alpha({4: [[4, 2, 0, 1]]})
    assert estimate.fit_error is None
    assert estimate.bootstrap_interval is None
    assert estimate.tokens_per_round == (2.75,)


def test_same_seed_same_interval():
    data = simulate([0.6] * 10, (3, 5), 20, 9)
    assert estimate_alpha(data, seed=4) == estimate_alpha(data, seed=4)
    assert estimate_alpha(data, seed=4).bootstrap_interval != estimate_alpha(data, seed=5).bootstrap_interval


@pytest.mark.parametrize(
    "data,words",
    [
        ({}, "no accepted lengths"),
        ({3: []}, "at least one round"),
        ({3: [[]]}, "at least one round"),
        ({3: [[4]]}, r"\[0, 3\]"),
        ({3: [[-1]]}, r"\[0, 3\]"),
        ({0: [[0]]}, "at least 1"),
        ({3: [[0, 0]]}, "rejected"),
        ({3: [[3, 3]]}, "every one accepted"),
        ({3: [[float("nan")]]}, r"\[0, 3\]"),
    ],
)
def test_impossible_lengths(data, words):
    with pytest.raises(PlanError, match=words):
        estimate_alpha(data)
