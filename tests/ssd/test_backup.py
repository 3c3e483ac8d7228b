"""Backups: what is chosen and why, what is topped up, and that random proposals are what they declare."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.errors import ConfigError
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.proposals import UniformDistribution
from sonoran.sampling.verification import verify
from sonoran.ssd import backup
from sonoran.ssd.backup import BackupPolicy, Pace, random_proposal, top_up_goals
from sonoran.ssd.statistics import OutcomeStatistics
from sonoran.theory.speedup import critical_batch_size
from sonoran.types import Outcome


def seen(counts: dict[str, tuple[int, int, float]]) -> OutcomeStatistics:
    """Statistics after (rounds, accepted tokens in each, hit rate) per origin, K = 4."""
    statistics = OutcomeStatistics()
    for origin, (rounds, accepted, hit_rate) in counts.items():
        for i in range(rounds):
            statistics.observe(origin, 4, Outcome(accepted, 0), hit=i < hit_rate * rounds)
    return statistics


def policy(statistics: OutcomeStatistics, draft_ms: float = 50.0) -> BackupPolicy:
    result = BackupPolicy("auto", statistics, 4)
    result.observe_latency(verification_ms=100.0, draft_ms=draft_ms)
    return result


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("draft", ["draft", "draft"]),
        ("ngram", ["ngram", "none"]),
        ("random", ["random", "random"]),
        ("none", ["none", "none"]),
    ],
)
def test_fixed_backups_per_row(kind: str, expected: list[str]) -> None:
    fixed = BackupPolicy(kind, OutcomeStatistics(), 4)
    assert fixed.choose(5, [True, False]) == expected
    assert fixed.choose(5, []) == []


def test_auto_starts_with_b_star() -> None:
    statistics = OutcomeStatistics()
    fresh = policy(statistics)
    b_star = critical_batch_size(
        statistics.overall_hit_rate(),
        statistics.mean_tokens("primary", 4),
        statistics.mean_tokens("ngram", 4),
        0.5,
    )
    assert fresh.critical_batch_size() == pytest.approx(b_star)
    assert 1.0 < b_star < 8.0
    assert fresh.choose(1, [True]) == ["draft"]
    assert fresh.choose(8, [True, False]) == ["ngram", "none"]
    for batch in range(1, 9):
        expected = "draft" if batch < b_star else "ngram"
        assert fresh.choose(batch, [True]) == [expected]


def test_auto_measures_the_draft_first() -> None:
    unknown = BackupPolicy("auto", OutcomeStatistics(), 4)
    assert unknown.critical_batch_size() == float("inf")
    assert unknown.choose(64, [True]) == ["draft"]


def test_observation_overrules_b_star() -> None:
    # n-grams accept everything here: b* of the prior would draft at batch 1, the counts say otherwise.
    good_ngrams = seen({"primary": (200, 4, 0.9), "draft": (50, 4, 0.9), "ngram": (50, 4, 0.9)})
    assert policy(good_ngrams).choose(1, [True]) == ["ngram"]
    # Without an n-gram for the row the draft is worth its time ...
    none_seen = seen({"primary": (200, 4, 0.9), "draft": (50, 4, 0.9), "none": (50, 0, 0.1)})
    assert policy(none_seen).choose(1, [False]) == ["draft"]
    # ... unless it is slow, or few of many rows would wait for it.
    assert policy(none_seen, draft_ms=300.0).choose(1, [False]) == ["none"]
    assert policy(none_seen).choose(16, [False]) == ["none"]
    assert policy(none_seen, draft_ms=20.0).choose(2, [False, False]) == ["draft", "draft"]


def test_a_better_next_round_counts() -> None:
    # Same tokens now; after n-grams nothing hits, after the draft everything does.
    def choice(after_ngram: float) -> list[str]:
        statistics = seen({"primary": (400, 4, 0.9), "draft": (400, 2, 0.95), "ngram": (400, 2, after_ngram)})
        return policy(statistics, draft_ms=15.0).choose(1, [True])

    assert choice(0.95) == ["ngram"]
    assert choice(0.0) == ["draft"]


def test_exploration_keeps_both_alive_and_is_reproducible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "EXPLORE_EVERY", 8)
    statistics = seen({"primary": (200, 4, 0.9), "draft": (40, 4, 0.9), "ngram": (90, 4, 0.9)})
    runs = []
    for _ in range(2):
        explorer = policy(statistics)
        runs.append([explorer.choose(4, [True])[0] for _ in range(32)])
    assert runs[0] == runs[1]
    assert runs[0].count("draft") == 4
    assert [i for i, c in enumerate(runs[0]) if c == "draft"] == [7, 15, 23, 31]


def test_latencies_are_running_means() -> None:
    statistics = OutcomeStatistics()
    measured = policy(statistics, draft_ms=100.0)
    measured.observe_latency(draft_ms=200.0)
    assert measured.draft_ms == pytest.approx(110.0)
    assert measured.verification_ms == 100.0
    with pytest.raises(ConfigError, match="latency must be finite"):
        measured.observe_latency(draft_ms=float("nan"))


def test_random_proposals_reproduce_and_are_uniform() -> None:
    first = random_proposal(seed=3, position=10, num_tokens=6, vocab_size=1000)
    assert first == random_proposal(3, 10, 6, 1000)
    # Random access: the token of a position does not depend on where the proposal started.
    assert random_proposal(3, 12, 2, 1000).tokens == first.tokens[2:4]
    assert random_proposal(4, 10, 6, 1000).tokens != first.tokens
    assert first.distributions == (UniformDistribution(1000),) * 6
    counts = np.bincount([random_proposal(5, i, 1, 7).tokens[0] for i in range(7000)], minlength=7)
    # 99.99 % quantile of chi-square with 6 degrees of freedom is 27.9.
    assert float(np.sum((counts - 1000) ** 2 / 1000)) < 27.9


def test_random_proposals_are_lossless_under_rejection() -> None:
    logits = np.array([[2.0, 1.0, 0.0, -1.0]], np.float32)
    rows = np.concatenate([logits, logits])
    params, total = SamplingParams(temperature=1.0), 6000
    counts = np.zeros(4)
    for seed in range(total):
        proposal = random_proposal(seed, 1, 1, 4)
        counts[verify("rejection", rows, [0], 1, proposal, params, seed, ()).tokens[0]] += 1
    expected = np.exp(logits[0].astype(np.float64))
    expected *= total / expected.sum()
    # 99.99 % quantile of chi-square with 3 degrees of freedom is 21.1.
    assert float(np.sum((counts - expected) ** 2 / expected)) < 21.1


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'ngram'"):
        BackupPolicy("n-gram", OutcomeStatistics(), 4)
    with pytest.raises(ConfigError, match="2 rows of a batch of 1"):
        BackupPolicy("auto", OutcomeStatistics(), 4).choose(1, [True, True])
    with pytest.raises(ConfigError, match="vocab_size must be >= 1"):
        random_proposal(0, 0, 1, 0)


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
