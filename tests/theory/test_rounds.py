"""Equation 1, break-even, tokens per round and the overlap condition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.errors import PlanError
from sonoran.theory.speedup import (
    break_even_hit_rate,
    draft_round_time,
    hit_rate_after,
    hit_rate_limit,
    is_hidden,
    longest_hidden_lookahead,
    sd_speedup,
    ssd_speedup,
    tokens_from_lengths,
    tokens_per_round,
)

HISTOGRAM = [0.13, 0.094, 0.07, 0.058, 0.048, 0.042, 0.035, 0.523]


def test_equation_1_value() -> None:
    assert hit_rate_limit(0.9, 0.6) == pytest.approx(0.857143, abs=5e-7)
    assert hit_rate_limit(1.0, 0.0) == hit_rate_after(100, 1.0, 0.0) == 1.0


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.integers(0, 40))
def test_equation_1_is_the_recursion(p: float, b: float, rounds: int) -> None:
    rate = p
    for _ in range(rounds):
        rate = rate * p + (1.0 - rate) * b
    assert hit_rate_after(rounds, p, b) == pytest.approx(rate, abs=1e-9)
    if abs(p - b) < 0.9:
        assert hit_rate_after(400, p, b) == pytest.approx(hit_rate_limit(p, b), abs=1e-9)


def test_break_even_is_the_renewal_rule() -> None:
    assert break_even_hit_rate(0.25, 4.0, 4.0) == pytest.approx(1 / 1.25)
    assert break_even_hit_rate(0.25, 4.0, 4.0, 3.5) == 0.0


@given(st.floats(0.05, 2.0), st.floats(2.0, 8.0), st.floats(1.0, 1.9))
def test_at_break_even_ssd_equals_sd(t: float, hit: float, miss: float) -> None:
    p = break_even_hit_rate(t, hit, hit, miss)
    if 0.0 < p <= 1.0:
        assert ssd_speedup(p, hit, miss, 0.5, 0.0) == pytest.approx(sd_speedup(hit, t))


def test_tokens_per_round() -> None:
    assert tokens_per_round(0.8, 3) == pytest.approx((1 - 0.8**4) / 0.2)
    assert tokens_per_round(1.0, 5) == 6.0
    assert tokens_per_round(0.0, 5) == tokens_per_round(0.9, 0) == 1.0
    assert tokens_from_lengths(HISTOGRAM) == pytest.approx(5.68, abs=0.02)  # printed: 5.68 tokens on a hit
    assert tokens_from_lengths([12, 9, 10, 81]) == pytest.approx(3.43, abs=0.005)


def test_overlap_condition() -> None:
    # Qwen3 figures: service .71, trunk build 2.83, tree step 2.54 against 11.5 ms: K = 4 is draft-bound by
    # 2 ms.
    assert draft_round_time(0.71, 2.83, 2.54, 4) == pytest.approx(13.70)
    assert not is_hidden(13.70, 11.5)
    assert is_hidden(13.70, 11.5, handshake=2.2)
    assert longest_hidden_lookahead(11.5, 0.71, 2.83, 2.54) == 3
    assert longest_hidden_lookahead(3.0, 0.71, 2.83, 2.54) == 0
    assert longest_hidden_lookahead(11.5, 0.71, 2.83, 0.0, limit=9) == 9


@given(st.floats(0, 100), st.floats(0, 10), st.floats(0, 10), st.floats(0.01, 10))
def test_longest_hidden_lookahead_is_hidden_and_longest(v: float, s: float, g: float, t: float) -> None:
    k = longest_hidden_lookahead(v, s, g, t)
    if k > 0:
        assert is_hidden(draft_round_time(s, g, t, k), v + 1e-9)
    if k < 64:
        assert not is_hidden(draft_round_time(s, g, t, k + 1), v - 1e-9 if v > 1e-9 else 0.0)


@pytest.mark.parametrize("lengths", [[], [0.0, 0.0], [-1.0, 3.0]])
def test_bad_histogram(lengths: list[float]) -> None:
    with pytest.raises(PlanError, match="accepted-length histogram"):
        tokens_from_lengths(lengths)


def test_bad_lookahead() -> None:
    with pytest.raises(PlanError, match="integer >= 0, got -1"):
        tokens_per_round(0.5, -1)
    with pytest.raises(PlanError, match="rounds must be >= 0, got -2"):
        hit_rate_after(-2, 0.5, 0.5)
