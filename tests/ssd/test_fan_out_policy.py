"""The policy the draft asks each round, and the budget that the draft finishes in time."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.config import FanOutRule
from sonoran.errors import ConfigError
from sonoran.ssd.fan_out import FanOutPolicy, RoundCosts, best_budget, largest_hidden_budget
from sonoran.ssd.statistics import ORIGINS, OutcomeStatistics
from sonoran.types import Outcome


def linear(rows: int) -> float:
    return 8.0 + rows


def test_auto_budget_by_hand() -> None:
    # service 1 + trunk (8 + 4) + 3 * (8 + B) <= 60  =>  B <= 7
    assert largest_hidden_budget(linear, 60.0, 3, service_ms=1.0) == 7
    assert largest_hidden_budget(linear, 10.0, 3) == 1
    assert largest_hidden_budget(linear, 1e9, 3, limit=24) == 24
    # Two sequences share the passes: 8 + 8 + 3 * (8 + 2 B) <= 60
    assert largest_hidden_budget(linear, 60.0, 3, sequences=2) == 3


@given(
    st.lists(st.floats(0.1, 9.0), min_size=80, max_size=80), st.floats(0.0, 80.0), st.integers(1, 6),
)  # fmt: skip
def test_auto_budget_is_the_largest_that_fits(increments: list[float], verify: float, k: int) -> None:
    def latency(rows: int) -> float:
        return sum(increments[:rows])

    budget = largest_hidden_budget(latency, verify, k, limit=64)

    def fits(b: int) -> bool:
        return latency(k + 1) + k * latency(b) <= verify

    assert fits(budget) or budget == 1
    assert budget == 64 or not fits(budget + 1)


@given(
    st.sampled_from([r for r in get_args(FanOutRule) if r != "explicit"]),
    st.sampled_from(ORIGINS),
    st.integers(0, 8),
    st.integers(1, 40),
    st.lists(st.tuples(st.sampled_from(ORIGINS), st.integers(0, 4), st.integers(0, 9)), max_size=40),
)
def test_every_list_spends_the_budget(rule: str, origin: str, k: int, budget: int, seen: list) -> None:
    statistics = OutcomeStatistics()
    policy = FanOutPolicy(statistics, rule, budget=budget, refresh=1)
    for observed, accepted, rank in seen:
        statistics.observe(observed, 4, Outcome(accepted, 0), rank)
        fan_out = policy.list_for(origin, k)
        assert len(fan_out) == k + 1
        assert sum(fan_out) == budget
    assert sum(policy.list_for(origin, k, budget=3)) == 3


def test_lists_differ_by_origin_and_follow_the_statistics() -> None:
    statistics = OutcomeStatistics()
    policy = FanOutPolicy(statistics, "measured", budget=8, refresh=16)
    cold = policy.list_for("primary", 3)
    assert policy.list_for("random", 3) == [8, 0, 0, 0]  # random tokens are never accepted
    for _ in range(15):
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
    policy = FanOutPolicy(OutcomeStatistics(), "explicit", primary=[1, 1, 1, 3], backup=[4, 1, 0, 1])
    assert policy.list_for("primary", 3) == [1, 1, 1, 3]
    assert policy.list_for("primary", 1) == [1, 3]
    assert policy.list_for("draft", 3) == [4, 1, 0, 1]
    alone = FanOutPolicy(OutcomeStatistics(), "explicit", primary=[2, 2])
    assert alone.list_for("ngram", 1) == [2, 2]


def test_geometric_parameters_can_be_fixed() -> None:
    policy = FanOutPolicy(OutcomeStatistics(), "geometric", budget=20, acceptance=0.64, exponent=1.0)
    assert policy.list_for("primary", 4) == [5, 4, 4, 3, 4]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rule": "geometrik"}, "did you mean 'geometric'"),
        ({"budget": 0}, "budget and refresh must be >= 1, got 0"),
        ({"rule": "explicit"}, "needs a list after primary"),
        ({"primary": [1, 1]}, "the others take none"),
        ({"rule": "explicit", "primary": [1, -1]}, "integers >= 0"),
        ({"backup": [1, 1]}, "needs one after primary"),
    ],
)
def test_bad_policies_are_refused(options: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        FanOutPolicy(OutcomeStatistics(), **options)


def hits(budget: int) -> float:
    return 1.0 - (budget + 1.0) ** -1.0


def costs(slope: float, backup_ms: float = 25.0) -> RoundCosts:
    return RoundCosts(lambda rows: 6.0 + slope * rows, 40.0, backup_ms, 4.5, 4.0)


def test_free_guesses_are_all_taken_and_dear_ones_are_not() -> None:
    assert best_budget(costs(0.0), hits, 4) == 32
    assert best_budget(costs(5.0), hits, 4) < best_budget(costs(0.5), hits, 4) < 32


def test_a_dear_miss_is_worth_more_guesses() -> None:
    assert best_budget(costs(1.0, backup_ms=0.0), hits, 4) <= best_budget(costs(1.0, 25.0), hits, 4)
    assert best_budget(costs(1.0, 25.0), hits, 4) < best_budget(costs(1.0, 250.0), hits, 4)


def test_guesses_that_do_not_help_are_not_made() -> None:
    assert best_budget(costs(0.0), lambda budget: 0.5, 4) == 1
