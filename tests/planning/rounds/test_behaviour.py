import math

import numpy as np
import pytest

from sonoran.errors import PlanError
from sonoran.planning.rounds.behaviour import Behaviour, power_for_tokens, stretch
from sonoran.theory.distributions import length_distribution
from sonoran.theory.speedup import tokens_from_lengths

CDF = [0.0, 0.5, 0.75, 0.8]


def test_lengths_of_a_constant_rate_are_geometric():
    assert length_distribution([0.8], 3) == pytest.approx([0.2, 0.16, 0.128, 0.512])
    assert length_distribution([0.5, 1.0], 3) == pytest.approx([0.5, 0.0, 0.0, 0.5])
    assert length_distribution([0.5], 0) == [1.0]


def test_origins_have_their_own_rates():
    behaviour = Behaviour((0.9,), np.array(CDF), np.array([0.0, 0.9]), after_miss=(0.6,), synchronous=(0.8,))
    assert behaviour.rates("primary") == (0.9,)
    assert behaviour.rates("draft") == (0.6,)
    assert behaviour.rates("ngram") == behaviour.rates("random") == behaviour.rates("none") == (0.0,)
    assert tokens_from_lengths(behaviour.synchronous_lengths(1)) == pytest.approx(1.8)
    # 0.1 of the rounds end after 0 accepted tokens and 0.9 after all.
    assert behaviour.hit_rate("primary", [2, 1]) == pytest.approx(0.1 * 0.75 + 0.9 * 0.9)
    assert behaviour.hit_rate("primary", [99, 0]) == pytest.approx(0.1 * 0.8)


def test_a_power_law_gives_back_the_hit_rate_it_was_made_for():
    r = -math.log(1.0 - 0.88) / math.log(3)  # 1 - 3^-r = 0.88
    assert r == pytest.approx(1.93, abs=0.005)
    assert Behaviour.power_law([0.7], r).hit_rate("primary", [3] * 8) == pytest.approx(0.88)


@pytest.mark.parametrize("tokens", [1.2, 3.93, 5.08, 7.5])
def test_the_power_for_a_number_of_tokens(tokens):
    rates = [0.87, 0.9, 0.93]
    power = power_for_tokens(rates, 7, tokens)
    assert tokens_from_lengths(length_distribution(stretch(rates, power), 7)) == pytest.approx(tokens)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Behaviour((), np.array(CDF), np.array(CDF)), "at least one rate"),
        (lambda: Behaviour((1.5,), np.array(CDF), np.array(CDF)), "probability"),
        (lambda: Behaviour((0.5,), np.array([0.1, 0.2]), np.array(CDF)), r"h\(0\) = 0"),
        (lambda: Behaviour((0.5,), np.array([0.0, 0.5, 0.4]), np.array(CDF)), "must grow"),
        (lambda: Behaviour((0.5,), np.array(CDF), np.array([0.0, 1.2])), "below 1"),
        (lambda: Behaviour.power_law([0.5], 0.0), "positive"),
        (lambda: power_for_tokens([0.8], 3, 4.5), "between 1 and 4"),
        (lambda: power_for_tokens([1.0], 3, 2.0), "no power"),
        (lambda: stretch([0.5], math.nan), ">= 0"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(PlanError, match=message):
        call()
