"""Waiting for a longer speculation pays while the expected token is worth more than the time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.ssd.backup import Pace, top_up_goals


def test_a_good_draft_is_waited_for_and_a_bad_one_is_not() -> None:
    # One token per 10 ms; a pass takes 6 ms, so a token is worth waiting for above a probability of 0.6.
    assert top_up_goals([1], [4], 0.95, 0.1, lambda n: 6.0) == [4]
    assert top_up_goals([1], [4], 0.8, 0.1, lambda n: 6.0) == [2]  # 0.64 pays, 0.512 does not
    assert top_up_goals([1], [4], 0.5, 0.1, lambda n: 6.0) == [1]


def test_a_batch_shares_the_pass() -> None:
    assert top_up_goals([1], [2], 0.7, 0.1, lambda n: 6.0) == [1]
    assert top_up_goals([1, 1, 2], [2, 2, 2], 0.7, 0.1, lambda n: 6.0) == [2, 2, 2]


def test_without_experience_everything_is_drafted() -> None:
    assert top_up_goals([0, 3], [4, 4], 0.1, Pace().rate, lambda n: 6.0) == [4, 4]


def test_the_pace_follows_the_last_rounds() -> None:
    pace = Pace()
    for _ in range(100):
        pace.observe(4, 50.0)
    assert pace.rate == pytest.approx(0.08)
    for _ in range(100):
        pace.observe(2, 50.0)
    assert pace.rate == pytest.approx(0.04, rel=1e-3)


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=6),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
    st.floats(0.0, 50.0),
)
def test_goals_lie_between_what_is_there_and_what_is_wanted(
    pairs: list[tuple[int, int]], acceptance: float, rate: float, pass_ms: float
) -> None:
    drafted, wanted = [p[0] for p in pairs], [p[1] for p in pairs]
    found = top_up_goals(drafted, wanted, acceptance, rate, lambda n: pass_ms)
    for length, there, most in zip(found, drafted, wanted, strict=True):
        assert there <= length <= max(there, most)
