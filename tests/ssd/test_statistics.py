"""Running statistics: estimates start at the prior, recover the truth, and fade."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.errors import ConfigError
from sonoran.ssd import statistics as module
from sonoran.ssd.fan_out import geometric, measured
from sonoran.ssd.statistics import ORIGINS, OutcomeStatistics, group_of, origins_of
from sonoran.theory.distributions import expected_hit_rate
from sonoran.types import Outcome

HISTOGRAM = np.array([0.13, 0.094, 0.07, 0.058, 0.048, 0.042, 0.035, 0.523])


@pytest.fixture
def no_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DECAY", 1.0)


@pytest.fixture
def no_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRIOR_STRENGTH", 1e-9)


def test_cold_start_is_the_geometric_default() -> None:
    cold = OutcomeStatistics()
    assert cold.acceptance("primary") == pytest.approx(0.8)
    assert cold.exponent("primary") == pytest.approx(1.0)
    assert cold.lengths("primary", 3) == pytest.approx([0.2, 0.16, 0.128, 0.512])
    for budget, k in [(24, 7), (20, 4), (32, 7), (64, 5)]:
        lengths, cdfs = cold.lengths("primary", k), cold.cdfs("primary", k)
        from_counts, closed = measured(budget, lengths, cdfs), geometric(budget, k, 0.8, 1.0)
        assert max(abs(a - b) for a, b in zip(from_counts, closed, strict=True)) <= 1
        gap = expected_hit_rate(from_counts, lengths, cdfs) - expected_hit_rate(closed, lengths, cdfs)
        assert 0.0 <= gap < 0.01


def test_estimates_recover_known_distributions(no_decay: None) -> None:
    rng = np.random.default_rng(5)
    statistics = OutcomeStatistics()
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
    hit_rate = expected_hit_rate(
        [2] * 7 + [1], statistics.lengths("primary", 7), statistics.cdfs("primary", 7)
    )
    assert hit_rate == pytest.approx(0.523 + 0.477 * (1 - 2**-1.5), abs=0.03)
    assert statistics.acceptance("ngram") == pytest.approx(0.4)  # untouched


def test_exponent_is_fitted(no_decay: None) -> None:
    rng = np.random.default_rng(6)
    statistics = OutcomeStatistics()
    for _ in range(4000):
        statistics.observe("draft", 2, Outcome(0, 0), int(np.ceil((1.0 - rng.random()) ** (-1 / 2.0))))
    assert statistics.exponent("draft") == pytest.approx(2.0, abs=0.25)


def test_short_speculations_count_for_the_positions_they_had(no_decay: None, no_prior: None) -> None:
    statistics = OutcomeStatistics()
    for _ in range(100):
        statistics.observe("primary", 1, Outcome(1, 0))
    for i in range(100):
        statistics.observe("primary", 3, Outcome(1 if i < 50 else 3, 0))
    # Position 1 was accepted 200 of 200 times, position 2 50 of 100, position 3 50 of 50.
    assert statistics.lengths("primary", 3) == pytest.approx([0.0, 0.5, 0.0, 0.5], abs=1e-6)
    assert statistics.lengths("primary", 1) == pytest.approx([0.0, 1.0], abs=1e-6)


def test_old_counts_fade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DECAY", 0.9)
    statistics = OutcomeStatistics()
    for accepted in [0] * 200 + [3] * 200:
        statistics.observe("primary", 3, Outcome(accepted, 0), 1, hit=accepted == 3)
    assert statistics.lengths("primary", 3)[3] > 0.5
    assert statistics.rounds("primary") == 400
    assert statistics.hit_rate("primary") > 0.8


def test_hit_rates_by_origin_follow_equation_1(no_decay: None, no_prior: None) -> None:
    statistics = OutcomeStatistics()
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
    assert [group_of(o) for o in ORIGINS] == ["primary"] + ["backup"] * 5
    assert origins_of("backup") == ("draft", "ngram", "random", "copy", "none")


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


@given(st.lists(observations(), max_size=60), st.integers(0, 20))
def test_estimates_are_distributions_whatever_was_seen(items: list, k: int) -> None:
    statistics = OutcomeStatistics()
    for item in items:
        statistics.observe(*item)
    for origin in ORIGINS:
        assert statistics.rounds(origin) == sum(item[0] == origin for item in items)
        assert sum(statistics.lengths(origin, k)) == pytest.approx(1.0)
        for last in (False, True):
            cdf = statistics.rank_cdf(origin, last)
            assert cdf[0] == 0.0
            assert cdf[-1] <= 1.0 + 1e-9
            assert np.all(np.diff(cdf) >= 0.0)
            assert np.all(np.diff(cdf, 2) <= 1e-12)
        assert 0.0 <= statistics.hit_rate_after(origin) <= 1.0
        assert 1.0 <= statistics.mean_tokens(origin, k) <= 22.0


def test_an_impossible_outcome_is_refused() -> None:
    with pytest.raises(ConfigError, match="4 of 3 proposed tokens"):
        OutcomeStatistics().observe("primary", 3, Outcome(4, 0))
