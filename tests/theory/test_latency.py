"""Times of a pass by its rows: a curve through measured points, and running means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.errors import PlanError
from sonoran.theory.latency import LatencyCurve, RunningLatency


def test_interpolates_and_extrapolates():
    curve = LatencyCurve.of({"4": 12.0, "1": 10.0, "8": 20.0})
    assert [curve(rows) for rows in (0, 1, 0.5, 2.5, 4, 6, 8, 10)] == [0, 10, 10, 11, 12, 16, 20, 24]
    assert curve.largest == 8
    assert curve.scaled(2.0)(6) == 32


def test_a_falling_end_is_not_continued():
    assert LatencyCurve.of({1: 5.0, 2: 9.0, 4: 8.0})(400) == 8.0
    assert LatencyCurve.of({3: 5.0})(50) == 5.0


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({}, "at least one point"),
        ({"0": 1.0}, "rows >= 1"),
        ({"1": 0.0}, "ms > 0"),
        ({"1": float("nan")}, "ms > 0"),
        ([(1, 2.0), (1, 3.0)], "two values for the same rows"),
        ({"x": 1.0}, "rows to milliseconds"),
        (7, "rows to milliseconds"),
    ],
)
def test_refuses(points, message):
    with pytest.raises(PlanError, match=message):
        LatencyCurve.of(points)


def test_running_means_interpolate_and_grow_in_proportion() -> None:
    latency = RunningLatency()
    assert latency(7) == 0.0
    latency.observe(4, 12.0)
    assert not latency.known
    assert [latency(rows) for rows in (1, 4, 8)] == [12.0, 12.0, 24.0]
    latency.observe(1, 9.0)
    latency.observe(8, 20.0)
    assert latency.known
    assert [latency(rows) for rows in (1, 2, 4, 6, 8, 16)] == [9.0, 10.0, 12.0, 16.0, 20.0, 40.0]
    latency.observe(4, 22.0)
    assert latency(4) == pytest.approx(13.0)
    assert latency.as_dict() == {"1": 9.0, "4": pytest.approx(13.0), "8": 20.0}


@given(st.dictionaries(st.integers(1, 64), st.floats(0.1, 90.0), min_size=1), st.integers(1, 64))
def test_both_interpolate_alike(points: dict[int, float], rows: int) -> None:
    latency, curve = RunningLatency(), LatencyCurve.of(points.items())
    for seen, milliseconds in points.items():
        latency.observe(seen, milliseconds)
    if rows <= curve.largest:
        assert latency(rows) == curve(rows)
