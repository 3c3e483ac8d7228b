"""Distributions of accepted lengths and of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.errors import PlanError
from sonoran.theory.distributions import concave_majorant, length_distribution, pooled_rate
from sonoran.theory.speedup import tokens_from_lengths, tokens_per_round


@given(st.floats(0.0, 1.0), st.integers(0, 12))
def test_a_constant_rate_gives_the_geometric_distribution(a: float, k: int) -> None:
    lengths = length_distribution([a], k)
    assert lengths == pytest.approx([a**i * (1.0 - a) for i in range(k)] + [a**k])
    assert tokens_from_lengths(lengths) == pytest.approx(tokens_per_round(a, k))
    if k:
        assert pooled_rate([a], k) == pytest.approx(a)


def test_pooled_rate_weighs_positions_by_how_often_they_are_reached() -> None:
    assert pooled_rate([0.5, 1.0], 2) == pytest.approx(1.0 / 1.5)  # 1.5 tokens are looked at, 1 is accepted
    with pytest.raises(PlanError, match="at least 1 token"):
        pooled_rate([0.5], 0)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12))
def test_concave_majorant(gains: list[float]) -> None:
    cdf = np.concatenate([[0.0], np.cumsum(gains)])
    hull = concave_majorant(cdf)
    assert np.all(hull >= cdf - 1e-12)
    assert np.all(np.diff(hull, 2) <= 1e-12)
    assert hull[[0, -1]] == pytest.approx(cdf[[0, -1]])
    # Least: no point of the hull lies above every chord of the original.
    for i in range(len(cdf)):
        chords = [
            cdf[a] + (cdf[b] - cdf[a]) * (i - a) / (b - a) if b > a else cdf[i]
            for a in range(i + 1)
            for b in range(i, len(cdf))
        ]
        assert hull[i] == pytest.approx(max(chords), abs=1e-12)
