"""Running statistics: estimates recover the truth, start at the prior, merge, and survive a round trip."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.errors import ConfigError
from sonoran.ssd.fan_out import geometric, measured
from sonoran.ssd.statistics import ORIGINS, OutcomeStatistics, Prior, group_of, origins_of
from sonoran.theory.distributions import expected_hit_rate
from sonoran.types import Outcome

HISTOGRAM = np.array([0.13, 0.094, 0.07, 0.058, 0.048, 0.042, 0.035, 0.523])


def test_cold_start_is_the_geometric_default() -> None:
    cold = OutcomeStatistics(prior=Prior(acceptance=0.8, exponent=1.0))
    assert cold.acceptance("primary") == pytest.approx(0.8)
    assert cold.exponent("primary") == pytest.approx(1.0)
    assert cold.lengths("primary", 3) == pytest.approx([0.2, 0.16, 0.128, 0.512])
    for budget, k in [(24, 7), (20, 4), (32, 7), (64, 5)]:
        lengths, cdfs = cold.lengths("primary", k), cold.cdfs("primary", k)
        from_counts, closed = measured(budget, lengths, cdfs), geometric(budget, k, 0.8, 1.0)
        assert max(abs(a - b) for a, b in zip(from_counts, closed, strict=True)) <= 1
        gap = expected_hit_rate(from_counts, lengths, cdfs) - expected_hit_rate(closed, lengths, cdfs)
        assert 0.0 <= gap < 0.01


def test_estimates_recover_a_known_law() -> None:
    rng = np.random.default_rng(5)
    statistics = OutcomeStatistics(decay=1.0)
    for accepted in rng.choice(8, size=6000, p=HISTOGRAM / HISTOGRAM.sum()):
        # Pareto ranks: Pr(rank > F) = F^-1.5, so rank 1 never occurs.
        rank = int(np.ceil((1.0 - rng.random()) ** (-1 / 1.5)))
        rank = rank if accepted < 7 else 1
        statistics.observe("primary", 7, Outcome(int(accepted), 0), rank, hit=bool(rng.random() < 0.88))
    assert statistics.lengths("primary", 7) == pytest.approx(HISTOGRAM, abs=0.02)
    assert statistics.hit_rate("primary") == pytest.approx(0.88, abs=0.02)
    assert statistics.mean_tokens("primary", 7) == pytest.approx(5.68, abs=0.1)
    cdf = statistics.rank_cdf("primary", all_accepted=False)
    assert cdf[4] == pytest.approx(1 - 4**-1.5, abs=0.02)
    assert statistics.rank_cdf("primary", all_accepted=True)[1] > 0.98
    # The bonus after "all accepted" is certain, so one guess there is enough.
    assert measured(16, statistics.lengths("primary", 7), statistics.cdfs("primary", 7))[7] == 1
    assert statistics.predicted_hit_rate("primary", [2] * 7 + [1]) == pytest.approx(
        0.523 + 0.477 * (1 - 2**-1.5), abs=0.03
    )
    assert statistics.acceptance("ngram") == pytest.approx(0.4)  # untouched


def test_exponent_is_fitted() -> None:
    rng = np.random.default_rng(6)
    statistics = OutcomeStatistics(decay=1.0)
    for _ in range(4000):
        statistics.observe("draft", 2, Outcome(0, 0), int(np.ceil((1.0 - rng.random()) ** (-1 / 2.0))))
    statistics_both = OutcomeStatistics.from_dict(statistics.to_dict())
    assert statistics_both.exponent("draft") == pytest.approx(2.0, abs=0.25)


def test_short_speculations_count_for_the_positions_they_had() -> None:
    statistics = OutcomeStatistics(decay=1.0, prior=Prior(strength=1e-6))
    for _ in range(100):
        statistics.observe("primary", 1, Outcome(1, 0))
    for i in range(100):
        statistics.observe("primary", 3, Outcome(1 if i < 50 else 3, 0))
    # Position 1 was accepted 200 of 200 times, position 2 50 of 100, position 3 50 of 50.
    assert statistics.lengths("primary", 3) == pytest.approx([0.0, 0.5, 0.0, 0.5], abs=1e-6)
    assert statistics.lengths("primary", 1) == pytest.approx([0.0, 1.0], abs=1e-6)


def test_old_counts_fade() -> None:
    statistics = OutcomeStatistics(decay=0.9)
    for accepted in [0] * 200 + [3] * 200:
        statistics.observe("primary", 3, Outcome(accepted, 0), 1, hit=accepted == 3)
    assert statistics.lengths("primary", 3)[3] > 0.5
    assert statistics.rounds("primary") == 400
    assert statistics.hit_rate("primary") > 0.8


def test_hit_rates_by_origin_follow_equation_1() -> None:
    statistics = OutcomeStatistics(decay=1.0, prior=Prior(strength=1e-9))
    for i in range(100):
        statistics.observe("primary", 1, Outcome(0, 0), hit=i < 90)
        statistics.observe("ngram", 1, Outcome(0, 0), hit=i < 70)
        statistics.observe("random", 1, Outcome(0, 0), hit=i < 50)
        statistics.observe("draft", 1, Outcome(0, 0), hit=None)
    assert statistics.hit_rate("primary") == pytest.approx(0.9)
    assert statistics.hit_rate("backup") == pytest.approx(0.6)
    assert statistics.hit_rate_after("ngram") == pytest.approx(0.7)
    assert statistics.hit_rate_after("draft") == pytest.approx(0.6)
    assert statistics.overall_hit_rate() == pytest.approx(0.857143, abs=1e-6)
    assert [group_of(o) for o in ORIGINS] == ["primary"] + ["backup"] * 4
    assert origins_of("backup") == ("draft", "ngram", "random", "none")


@st.composite
def observations(draw: st.DrawFn) -> tuple[str, int, Outcome, int | None, bool | None]:
    proposed = draw(st.integers(0, 20))
    return (
        draw(st.sampled_from(ORIGINS)),
        proposed,
        Outcome(draw(st.integers(0, proposed)), draw(st.integers(0, 99))),
        draw(st.none() | st.integers(0, 80)),
        draw(st.none() | st.booleans()),
    )


@given(st.lists(observations(), max_size=30), st.lists(observations(), max_size=30), st.integers(0, 20))
def test_laws_merging_and_round_trip(first: list, second: list, k: int) -> None:
    parts = [OutcomeStatistics(decay=1.0), OutcomeStatistics(decay=1.0)]
    together = OutcomeStatistics(decay=1.0)
    for part, items in zip(parts, (first, second), strict=True):
        for item in items:
            part.observe(*item)
            together.observe(*item)
    parts[0].merge(OutcomeStatistics.from_dict(json.loads(json.dumps(parts[1].to_dict()))))
    assert parts[0].to_dict() == together.to_dict()
    for origin in ORIGINS:
        assert sum(together.lengths(origin, k)) == pytest.approx(1.0)
        for last in (False, True):
            cdf = together.rank_cdf(origin, last)
            assert cdf[0] == 0.0
            assert cdf[-1] <= 1.0 + 1e-9
            assert np.all(np.diff(cdf) >= 0.0)
            assert np.all(np.diff(cdf, 2) <= 1e-12)
        assert 0.0 <= together.hit_rate_after(origin) <= 1.0
        assert 1.0 <= together.mean_tokens(origin, k) <= 22.0


def test_bad_data_is_refused() -> None:
    statistics = OutcomeStatistics()
    with pytest.raises(ConfigError, match="4 of 3 proposed tokens"):
        statistics.observe("primary", 3, Outcome(4, 0))
    with pytest.raises(ConfigError, match="cannot be merged"):
        statistics.merge(OutcomeStatistics(max_rank=8))
    with pytest.raises(ConfigError, match="decay must lie in"):
        OutcomeStatistics(decay=0.0)
    statistics.observe("primary", 3, Outcome(1, 0))
    data = statistics.to_dict()
    damages = [{"max_rank": 8}, {"counts": {"primary": [-1.0]}}, {"counts": {"target": []}}, {"prior": 3}]
    for damage in damages:
        with pytest.raises(ConfigError, match="not a saved outcome statistic"):
            OutcomeStatistics.from_dict({**data, **damage})
