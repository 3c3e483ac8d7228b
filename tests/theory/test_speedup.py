"""Printed and derived values of Equation 1, Theorem 7, Corollaries 8, 9, 16 and Theorem 17, and tokens per round."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.errors import PlanError
from sonoran.theory.speedup import (
    batch_speedup,
    critical_batch_size,
    draft_round_time,
    hit_rate_limit,
    sd_speedup,
    ssd_speedup,
    tokens_from_lengths,
    tokens_per_round,
)

HISTOGRAM = [0.13, 0.094, 0.07, 0.058, 0.048, 0.042, 0.035, 0.523]

probabilities = st.floats(0.01, 0.99)
latencies = st.floats(0.01, 3.0)
token_counts = st.floats(1.0, 9.0)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0.88, 5.5, 4.0, 0.9, 0.9), 4.80144),
        ((0.88, 5.5, 1.0, 0.9, 0.0), 4.96),
        ((0.88, 5.5, 4.0, 1.3, 1.3), 3.74648),
    ],
)
def test_theorem_7(arguments: tuple[float, ...], expected: float) -> None:
    assert ssd_speedup(*arguments) == pytest.approx(expected, abs=5e-6)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [(1, 5.0182), (2, 4.6591), (4, 4.1659), (8, 3.6369), (16, 3.2419), (math.inf, 3.0556)],
)
def test_corollary_16(batch: float, expected: float) -> None:
    assert batch_speedup(0.88, 5.5, 5.5, 0.8, 0.8, batch) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0.88, 5.6, 1.0, 0.8), 1.1498),
        ((0.75, 4.5, 1.0, 0.6), 1.7890),
        ((0.9, 5.0, 1.0, 0.4), 2.3265),
        ((0.5, 5.0, 1.0, 0.3), math.inf),
    ],
)
def test_theorem_17(arguments: tuple[float, ...], expected: float) -> None:
    assert critical_batch_size(*arguments) == pytest.approx(expected, abs=5e-5)


def corollary_9(hit_rate: float, tokens_ratio: float, sd_latency: float) -> tuple[float, float]:
    """Bounds of SSD / SD for a hidden draft and a free backup; ``tokens_ratio`` is E_hit / E_SD."""
    upper = (1.0 + sd_latency) * tokens_ratio
    return upper * hit_rate, upper


def test_corollary_9() -> None:
    assert corollary_9(0.9, 1.1, 0.6) == pytest.approx((1.584, 1.760))


def test_published_means_follow_from_the_preset() -> None:
    sd, ssd = sd_speedup(5.08, 0.717), ssd_speedup(0.88, 5.08, 5.08, 1.0, 0.717)
    assert 54.7 * sd == pytest.approx(161.8, abs=0.1)
    assert 54.7 * ssd == pytest.approx(255.8, abs=0.1)
    assert [round(batch_speedup(0.88, 5.08, 5.08, 1.0, 0.717, b), 2) for b in (1, 2, 4, 8, 16)] == [
        4.68, 4.37, 3.95, 3.48, 3.13,
    ]  # fmt: skip
    random_backup = ssd_speedup(0.88, 5.08, 1.0, 1.0, 0.0)
    assert random_backup == pytest.approx(4.59, abs=0.005)
    assert critical_batch_size(0.88, 5.08, 1.0, 0.717) == pytest.approx(1.26, abs=0.005)


@pytest.mark.parametrize(("p", "t", "e"), [(0.74, 0.80, 2.77), (0.84, 0.643, 2.53)])
def test_second_preset(p: float, t: float, e: float) -> None:
    assert 88.8 * sd_speedup(e, t) == pytest.approx(136.8, rel=0.01)
    assert 88.8 * ssd_speedup(p, e, e, 1.0, t) == pytest.approx(203.8, rel=0.01)


@given(probabilities, latencies, token_counts)
def test_corollary_8_is_theorem_7_over_sd(p: float, t: float, e: float) -> None:
    ratio = ssd_speedup(p, e, e, t, t) / sd_speedup(e, t)
    assert ratio == pytest.approx((1.0 + t) / (p * max(1.0, t) + (1.0 - p) * (1.0 + t)))
    assert ratio > 1.0


@given(probabilities, st.floats(1.0, 9.0), st.floats(0.0, 1.0), st.floats(0.01, 2.0), st.floats(1.0, 9.0))
def test_corollary_9_bounds_theorem_7(p: float, hit: float, share: float, t_sd: float, sd: float) -> None:
    miss = 1.0 + share * (hit - 1.0)
    ratio = ssd_speedup(p, hit, miss, 0.5, 0.0) / sd_speedup(sd, t_sd)
    lower, upper = corollary_9(p, hit / sd, t_sd)
    assert lower - 1e-9 <= ratio <= upper + 1e-9


@given(probabilities, st.floats(1.1, 9.0), st.floats(0.0, 0.99), st.floats(0.01, 4.0), st.integers(1, 64))
def test_theorem_17_is_where_the_strategies_cross(
    p: float, hit: float, share: float, t: float, batch: int
) -> None:
    miss = 1.0 + share * (hit - 1.0)
    slow = batch_speedup(p, hit, hit, t, t, batch)
    fast = batch_speedup(p, hit, miss, t, 0.0, batch)
    b_star = critical_batch_size(p, hit, miss, t)
    if batch < b_star * (1 - 1e-6):
        assert slow >= fast * (1 - 1e-9)
    elif batch > b_star * (1 + 1e-6):
        assert fast >= slow * (1 - 1e-9)


def test_certain_hits_make_the_backup_irrelevant() -> None:
    assert critical_batch_size(1.0, 5.0, 1.0, 0.5) == math.inf
    assert critical_batch_size(0.0, 5.0, 4.9, 0.5) == 0.0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((1.2, 5.0, 4.0, 0.5, 0.5), "1.2; nearest valid value: 1.0"),
        ((0.5, 0.5, 4.0, 0.5, 0.5), "tokens_hit counts the bonus token"),
        ((0.5, 5.0, 4.0, -0.5, 0.5), "primary_latency must be finite and >= 0, got -0.5"),
    ],
)
def test_impossible_input_is_named(arguments: tuple[float, ...], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        ssd_speedup(*arguments)
    with pytest.raises(PlanError, match="batch_size must be at least 1"):
        batch_speedup(0.5, 2.0, 2.0, 0.5, 0.5, 0)


def test_equation_1_value() -> None:
    assert hit_rate_limit(0.9, 0.6) == pytest.approx(0.857143, abs=5e-7)
    assert hit_rate_limit(1.0, 0.0) == 1.0


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_equation_1_is_the_limit_of_the_recursion(p: float, b: float) -> None:
    rate = p
    for _ in range(400):
        rate = rate * p + (1.0 - rate) * b
    if abs(p - b) < 0.9:
        assert hit_rate_limit(p, b) == pytest.approx(rate, abs=1e-9)


def test_tokens_per_round() -> None:
    assert tokens_per_round(0.8, 3) == pytest.approx((1 - 0.8**4) / 0.2)
    assert tokens_per_round(1.0, 5) == 6.0
    assert tokens_per_round(0.0, 5) == tokens_per_round(0.9, 0) == 1.0
    assert tokens_from_lengths(HISTOGRAM) == pytest.approx(5.68, abs=0.02)  # printed: 5.68 tokens on a hit
    assert tokens_from_lengths([12, 9, 10, 81]) == pytest.approx(3.43, abs=0.005)


def test_draft_round_of_a_published_model() -> None:
    # Qwen3 figures: service .71, trunk build 2.83, tree step 2.54; at K = 4 it outlasts the 11.5 ms of verification.
    assert draft_round_time(0.71, 2.83, 2.54, 4) == pytest.approx(13.70)


@pytest.mark.parametrize("lengths", [[], [0.0, 0.0], [-1.0, 3.0]])
def test_bad_histogram(lengths: list[float]) -> None:
    with pytest.raises(PlanError, match="accepted-length histogram"):
        tokens_from_lengths(lengths)


def test_bad_lookahead() -> None:
    with pytest.raises(PlanError, match="integer >= 0, got -1"):
        tokens_per_round(0.5, -1)
