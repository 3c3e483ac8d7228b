"""Printed and derived values of Theorem 7, Corollaries 8, 9, 16 and Theorem 17."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.errors import PlanError
from sonoran.theory.speedup import (
    batch_speedup,
    critical_batch_size,
    gain_bounds,
    same_speculator_gain,
    sd_speedup,
    ssd_speedup,
)

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


def test_corollary_9() -> None:
    assert gain_bounds(0.9, 1.1, 0.6) == pytest.approx((1.584, 1.760))


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
    assert same_speculator_gain(p, t) == pytest.approx(ratio)
    assert ratio > 1.0


@given(probabilities, st.floats(1.0, 9.0), st.floats(0.0, 1.0), st.floats(0.01, 2.0), st.floats(1.0, 9.0))
def test_corollary_9_bounds_theorem_7(p: float, hit: float, share: float, t_sd: float, sd: float) -> None:
    miss = 1.0 + share * (hit - 1.0)
    ratio = ssd_speedup(p, hit, miss, 0.5, 0.0) / sd_speedup(sd, t_sd)
    lower, upper = gain_bounds(p, hit / sd, t_sd)
    assert lower - 1e-9 <= ratio <= upper + 1e-9


@given(probabilities, st.floats(1.1, 9.0), st.floats(0.0, 0.99), st.floats(0.01, 0.99), st.integers(1, 64))
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
