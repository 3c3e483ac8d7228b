"""Fan-out: the reference vectors, sums, optimality against brute force, and the policy that keeps the lists."""

from __future__ import annotations

import itertools
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.config import FanOutRule
from sonoran.errors import ConfigError
from sonoran.ssd import fan_out as module
from sonoran.ssd.fan_out import (
    FanOutPolicy,
    geometric,
    geometric_shares,
    largest_remainder,
    likeliest,
    measured,
    resize,
    uniform,
)
from sonoran.ssd.outcomes import outcome_probabilities
from sonoran.ssd.statistics import ORIGINS, OutcomeStatistics
from sonoran.theory.distributions import (
    concave_majorant,
    expected_hit_rate,
    length_distribution,
    power_law_cdf,
)
from sonoran.types import Outcome

# B, K, a, r, real values, largest remainder, model hit rate geometric / uniform
VECTORS = [
    (20, 4, 0.64, 1.0, [5.503, 4.402, 3.522, 2.817, 3.756], [5, 4, 4, 3, 4], 0.7622, 0.7500),
    (24, 7, 0.80, 1.0, [3.897, 3.486, 3.118, 2.789, 2.494, 2.231, 1.995, 3.991],
     [4, 3, 3, 3, 3, 2, 2, 4], 0.6840, 0.6667),
    (24, 7, 0.90, 1.0, [2.928, 2.778, 2.635, 2.500, 2.372, 2.250, 2.134, 6.403],
     [3, 3, 3, 3, 2, 2, 2, 6], 0.7200, 0.6667),
    (24, 7, 0.80, 2.0, [3.594, 3.336, 3.097, 2.875, 2.669, 2.478, 2.300, 3.651],
     [4, 3, 3, 3, 3, 2, 2, 4], 0.8966, 0.8889),
    (36, 6, 0.735, 0.6, [7.767, 6.407, 5.286, 4.361, 3.597, 2.968, 5.614], [8, 6, 5, 4, 4, 3, 6], 0.6410,
    0.6257), (32, 7, 0.80, 0.6, [5.500, 4.784, 4.161, 3.620, 3.148, 2.739, 2.382, 5.666], [5, 5, 4, 4, 3, 3,
    2, 6], 0.5816, 0.5647),
]  # fmt: skip
HISTOGRAM = [0.13, 0.094, 0.07, 0.058, 0.048, 0.042, 0.035, 0.523]


@pytest.mark.parametrize(("b", "k", "a", "r", "real", "rounded", "hit", "hit_uniform"), VECTORS)
def test_reference_vectors(
    b: int, k: int, a: float, r: float, real: list[float], rounded: list[int], hit: float, hit_uniform: float
) -> None:
    assert geometric_shares(b, k, a, r) == pytest.approx(real, abs=6e-4)
    assert geometric(b, k, a, r) == rounded
    lengths, h = length_distribution([a], k), lambda f: 1.0 - f**-r
    assert sum(p * h(f) for p, f in zip(lengths, real, strict=True)) == pytest.approx(hit, abs=1e-4)
    even = b / (k + 1)
    assert sum(p * h(even) for p in lengths) == pytest.approx(hit_uniform, abs=1e-4)


def test_limits_of_theorem_12() -> None:
    assert geometric(9, 3, 0.0, 1.0) == [9, 0, 0, 0]
    assert geometric(9, 3, 1.0, 1.0) == [0, 0, 0, 9]
    assert geometric(5, 0, 0.4, 1.0) == [5]
    assert geometric(3, 7, 0.8, 1.0) == [1, 1, 0, 0, 0, 0, 0, 1]  # fewer guesses than positions
    assert uniform(3, 7) == [1, 1, 0, 0, 0, 0, 0, 1]
    assert uniform(24, 7) == [3] * 8


def test_measured_histogram_of_a_published_run() -> None:
    fan_out = measured(24, HISTOGRAM, [concave_majorant(power_law_cdf(1.93, 24))] * 8)
    assert fan_out == [3, 3, 3, 3, 2, 2, 2, 6]
    cdfs = [power_law_cdf(1.93, 24)] * 8
    assert expected_hit_rate(fan_out, HISTOGRAM, cdfs) == pytest.approx(0.908, abs=1e-3)
    assert expected_hit_rate(uniform(24, 7), HISTOGRAM, cdfs) == pytest.approx(0.880, abs=1e-3)


budgets = st.integers(0, 80)
lookaheads = st.integers(0, 12)


@given(budgets, lookaheads, st.floats(0.0, 1.0), st.floats(0.05, 5.0))
def test_every_rule_spends_the_budget(b: int, k: int, a: float, r: float) -> None:
    lengths = length_distribution([a], k)
    cdfs = [concave_majorant(power_law_cdf(r, 16))] * (k + 1)
    for fan_out in (uniform(b, k), geometric(b, k, a, r), measured(b, lengths, cdfs)):
        assert len(fan_out) == k + 1
        assert sum(fan_out) == b
        assert min(fan_out) >= 0


@given(st.integers(1, 40), st.integers(1, 10), st.floats(0.01, 0.99), st.floats(0.1, 4.0))
def test_geometric_follows_the_probability_of_the_position(b: int, k: int, a: float, r: float) -> None:
    fan_out, lengths = geometric(b, k, a, r), length_distribution([a], k)
    for i, j in itertools.permutations(range(k + 1), 2):
        if lengths[i] > lengths[j]:
            assert fan_out[i] >= fan_out[j] - 1
            if fan_out[i] == 0:
                assert fan_out[j] == 0


@st.composite
def allocation_problems(draw: st.DrawFn) -> tuple[int, list[float], list[list[float]]]:
    k = draw(st.integers(0, 3))
    weights = draw(st.lists(st.integers(0, 20), min_size=k + 1, max_size=k + 1).filter(any))
    cdfs = []
    for _ in range(k + 1):
        gains = sorted(draw(st.lists(st.integers(0, 30), min_size=1, max_size=8)), reverse=True)
        total = sum(gains) + draw(st.integers(1, 30))
        cdfs.append([0.0, *np.cumsum(np.array(gains) / total)])
    return draw(st.integers(0, 7)), [w / sum(weights) for w in weights], cdfs


@given(allocation_problems())
def test_greedy_is_optimal_for_concave_cdfs(problem: tuple[int, list[float], list[list[float]]]) -> None:
    budget, lengths, cdfs = problem
    best = max(
        expected_hit_rate(f, lengths, cdfs)
        for f in itertools.product(range(budget + 1), repeat=len(lengths))
        if sum(f) == budget
    )
    assert expected_hit_rate(measured(budget, lengths, cdfs), lengths, cdfs) == pytest.approx(best, abs=1e-12)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9))
def test_largest_remainder_keeps_integers(shares: list[int]) -> None:
    assert largest_remainder([s * (1.0 - 1e-14) for s in shares], sum(shares)) == shares


def test_resize_keeps_the_all_accepted_entry() -> None:
    assert resize([3, 2, 1, 6], 3) == [3, 2, 1, 6]
    assert resize([3, 2, 1, 6], 1) == [3, 6]
    assert resize([3, 2, 1, 6], 5) == [3, 2, 1, 1, 1, 6]
    assert resize([4], 2) == [4, 4, 4]
    assert resize([3, 2, 6], 0) == [6]


@pytest.mark.parametrize("bad", [[], [1, -1], [True, 2], [1.5, 2]])
def test_bad_lists_are_refused(bad: list[int]) -> None:
    with pytest.raises(ConfigError, match="fan-out list"):
        resize(bad, 3)


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ConfigError, match="acceptance must lie in"):
        geometric(4, 3, 1.5, 1.0)
    with pytest.raises(ConfigError, match="exponent must be positive, got 0"):
        geometric(4, 3, 0.5, 0)
    with pytest.raises(ConfigError, match="budget must be >= 0, got -1"):
        uniform(-1, 3)
    with pytest.raises(ConfigError, match="as many cdfs"):
        measured(4, [0.5, 0.5], [[0.0, 1.0]])


@given(
    st.sampled_from([r for r in get_args(FanOutRule) if r != "explicit"]),
    st.sampled_from(ORIGINS),
    st.integers(0, 8),
    st.integers(1, 40),
    st.lists(st.tuples(st.sampled_from(ORIGINS), st.integers(0, 4), st.integers(0, 9)), max_size=40),
)
def test_every_list_spends_the_budget(rule: str, origin: str, k: int, budget: int, seen: list) -> None:
    statistics = OutcomeStatistics()
    policy = FanOutPolicy(statistics, rule, budget)
    for observed, accepted, rank in seen:
        statistics.observe(observed, 4, Outcome(accepted, 0), rank)
        fan_out = policy.list_for(origin, k)
        assert len(fan_out) == k + 1
        assert sum(fan_out) == budget
    assert sum(policy.list_for(origin, k, budget=3)) == 3


def test_lists_differ_by_origin_and_follow_the_statistics() -> None:
    statistics = OutcomeStatistics()
    policy = FanOutPolicy(statistics, "measured", 8)
    cold = policy.list_for("primary", 3)
    assert policy.list_for("random", 3) == [8, 0, 0, 0]  # random tokens are never accepted
    for _ in range(module.REFRESH - 1):
        statistics.observe("primary", 3, Outcome(3, 0), 1)
    assert policy.list_for("primary", 3) == cold  # not yet refreshed
    for _ in range(200):
        statistics.observe("primary", 3, Outcome(0, 0), 1)
        statistics.observe("ngram", 3, Outcome(3, 0), 5)
    assert policy.list_for("primary", 3)[0] > cold[0]
    assert policy.list_for("ngram", 3)[3] > policy.list_for("primary", 3)[3]
    policy.list_for("primary", 3)[0] = 99
    assert policy.list_for("primary", 3)[0] != 99  # callers get their own copy


def test_explicit_lists() -> None:
    policy = FanOutPolicy(OutcomeStatistics(), "explicit", 8, primary=[1, 1, 1, 3], backup=[4, 1, 0, 1])
    assert policy.list_for("primary", 3) == [1, 1, 1, 3]
    assert policy.list_for("primary", 1) == [1, 3]
    assert policy.list_for("draft", 3) == [4, 1, 0, 1]
    alone = FanOutPolicy(OutcomeStatistics(), "explicit", 8, primary=[2, 2])
    assert alone.list_for("ngram", 1) == [2, 2]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rule": "geometrik"}, "did you mean 'geometric'"),
        ({"budget": 0}, "budget must be >= 1, got 0"),
        ({"rule": "explicit"}, "needs a list after primary"),
        ({"primary": [1, 1]}, "the others take none"),
        ({"rule": "explicit", "primary": [1, -1]}, "integers >= 0"),
        ({"backup": [1, 1]}, "needs one after primary"),
    ],
)
def test_bad_policies_are_refused(options: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        FanOutPolicy(OutcomeStatistics(), **{"rule": "measured", "budget": 8, **options})


def log(*chances: float) -> np.ndarray:
    return np.log(np.array(chances))


def test_guesses_go_where_this_text_is_weak() -> None:
    sure, torn = log(0.98, 0.015, 0.005), log(0.5, 0.45, 0.05)
    weak_first = outcome_probabilities([torn, sure, log(0.99, 0.01)], "coupled")
    weak_later = outcome_probabilities([sure, torn, log(0.99, 0.01)], "coupled")
    assert likeliest([weak_first], 3) == [[2, 0, 1]]
    assert likeliest([weak_later], 2) == [[0, 1, 1]]


def test_a_budget_is_shared_by_need_and_all_accepted_is_always_guessed() -> None:
    sure = outcome_probabilities([log(0.99, 0.01), log(0.99, 0.01)], "coupled")
    torn = outcome_probabilities([log(0.3, 0.25, 0.25, 0.2), log(0.5, 0.5)], "coupled")
    assert likeliest([sure, torn], 5) == [[0, 1], [3, 1]]
    assert likeliest([torn], 1) == [[0, 1]]
    assert likeliest([sure, torn], 100) == [[1, 2], [3, 2]]
    with pytest.raises(ConfigError, match="too few for 2 sequences"):
        likeliest([sure, torn], 1)
