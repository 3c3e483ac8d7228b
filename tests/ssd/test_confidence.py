"""Confidence: probabilities of outcomes, where guesses go, how many are worth it, and whom to trust."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sonoran.errors import ConfigError
from sonoran.sampling import noise
from sonoran.sampling.drafts import draft_sample
from sonoran.sampling.params import SamplingParams
from sonoran.ssd.budget import Prices, likeliest, worthwhile
from sonoran.ssd.outcomes import (
    AverageLaw,
    Beliefs,
    Trust,
    outcome_probabilities,
    predict_outcomes,
    rank_rows,
    score_rows,
)
from sonoran.ssd.statistics import OutcomeStatistics
from sonoran.types import Outcome


def log(*chances: float) -> np.ndarray:
    return np.log(np.array(chances))


def flat(rows: list[np.ndarray]) -> float:
    return math.fsum(float(p) for row in rows for p in row)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(0, 5), width=st.integers(1, 9))
def test_all_outcomes_together_have_probability_one(rule: str, seed: int, k: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    scores = [rng.normal(size=width + 1) * 3 for _ in range(k)] + [rng.normal(size=width)]
    assert flat(outcome_probabilities(scores, rule)) == pytest.approx(1.0)  # type: ignore[arg-type]


def test_coupled_outcomes_follow_the_softmax_of_the_scores() -> None:
    first, second, last = outcome_probabilities(
        [log(0.9, 0.06, 0.04), log(0.5, 0.4, 0.1), log(0.7, 0.3)], "coupled"
    )
    assert first == pytest.approx([0.06, 0.04])
    assert second == pytest.approx([0.9 * 0.4, 0.9 * 0.1])
    assert last == pytest.approx([0.45 * 0.7, 0.45 * 0.3])


def test_rejection_accepts_more_than_an_independent_draw_would() -> None:
    first, last = outcome_probabilities([log(0.25, 0.5, 0.25), log(1.0)], "rejection")
    assert last == pytest.approx([0.5])
    assert first == pytest.approx([0.5 * 2 / 3, 0.5 / 3])


def test_tokens_that_cannot_be_drawn_have_no_chance() -> None:
    first, last = outcome_probabilities([np.array([0.0, -np.inf]), np.array([-np.inf, -np.inf])], "coupled")
    assert first == pytest.approx([0.0])
    assert last == pytest.approx([0.5, 0.5])


def test_guesses_go_where_this_text_is_weak() -> None:
    sure, torn = log(0.98, 0.015, 0.005), log(0.5, 0.45, 0.05)
    weak_first = outcome_probabilities([torn, sure, log(0.99, 0.01)], "coupled")
    weak_later = outcome_probabilities([sure, torn, log(0.99, 0.01)], "coupled")
    assert likeliest([weak_first], 3) == [[2, 0, 1]]
    assert likeliest([weak_later], 2) == [[0, 1, 1]]


def test_a_budget_is_shared_by_need_and_all_accepted_is_always_guessed() -> None:
    sure = outcome_probabilities([log(0.99, 0.01), log(0.99, 0.01)], "coupled")
    torn = outcome_probabilities([log(0.3, 0.25, 0.25, 0.2), log(0.5, 0.5)], "coupled")
    assert likeliest([sure, torn], 5) == [[0, 1], [3, 1]]
    assert likeliest([torn], 1) == [[0, 1]]
    assert likeliest([sure, torn], 100) == [[1, 2], [3, 2]]
    with pytest.raises(ConfigError, match="too few for 2 sequences"):
        likeliest([sure, torn], 1)


def test_more_guesses_while_they_save_more_than_they_cost() -> None:
    chances = [outcome_probabilities([log(0.5, 0.3, 0.1, 0.06, 0.04), log(1.0)], "coupled")]
    free = Prices(lambda branches: 10.0, 40.0, 20.0, 0.0)
    assert worthwhile(chances, free, 32) == 5
    assert worthwhile(chances, free, 3) == 3
    # Beyond the verification's 40 ms a guess costs 2.2 ms: 0.3 of 20 ms pays, 0.1 does not.
    slow = Prices(lambda branches: 60.0 + 2.2 * branches, 40.0, 20.0, 0.0)
    assert worthwhile(chances, slow, 32) == 2
    assert worthwhile(chances, Prices(slow.draft_round, 40.0, 0.0, 30.0), 32) == 3
    assert worthwhile(chances, Prices(slow.draft_round, 40.0, 0.0, 0.0), 32) == 1


def test_a_batch_waits_for_one_miss_as_for_many() -> None:
    one = outcome_probabilities([log(0.5, 0.5), log(1.0)], "coupled")
    prices = Prices(lambda branches: 60.0 + 4.0 * branches, 40.0, 30.0, 0.0)
    assert worthwhile([one], prices, 32) == 2
    # Sequences that miss anyway make the batch wait, whatever the others guess.
    hopeless = [np.array([0.0]), np.array([0.01])]
    assert worthwhile([one, hopeless], prices, 32) == 2


def test_trust_goes_to_who_predicts_better_and_comes_back() -> None:
    beliefs = Beliefs([np.array([0.1, 0.05]), np.array([0.85])], [np.array([0.4, 0.1]), np.array([0.5])])
    trust = Trust()
    for _ in range(20):
        trust.observe(beliefs, Outcome(0, 7), 1)
    assert trust.weight < 0.03
    for _ in range(20):
        trust.observe(beliefs, Outcome(1, 7), 1)
    assert trust.weight > 0.9
    before = trust.weight
    trust.observe(beliefs, Outcome(0, 9), 0)
    assert trust.weight == before
    mixed = beliefs.mixed(0.5)
    assert mixed[0] == pytest.approx([0.25, 0.075])
    assert mixed[1] == pytest.approx([0.675])


def test_the_average_follows_the_statistics_of_the_origin() -> None:
    statistics = OutcomeStatistics()
    law = AverageLaw(statistics, refresh=1)
    assert flat(law("primary", [64, 64])) <= 1.0 + 1e-9
    for _ in range(300):
        statistics.observe("primary", 1, Outcome(1, 5), 1)
    first, last = law("primary", [2, 100])
    assert len(last) == 100 and float(last[0]) > 0.85 and float(first.sum()) < 0.06
    assert float(law("draft", [2, 2])[1][0]) < float(last[0])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_scores_rank_as_the_candidates_do_and_contain_the_noise(temperature: float) -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(3, 40)).astype(np.float32)
    params = SamplingParams(temperature=temperature, top_p=0.9)
    prefix, seed = [1, 2, 3], 11
    sent: list[int] = []
    for i in range(2):
        sent.append(draft_sample("coupled", logits[i], prefix, 3, params, seed, 3 + i)[0])
    ranked = rank_rows("coupled", logits, sent, [12] * 3, prefix, 3, params, seed)
    scores = score_rows("coupled", logits, sent, ranked, prefix, 3, params, seed)
    assert [len(row) for row in scores] == [13, 13, 12]
    for k, row in enumerate(scores):
        assert np.all(np.diff(row[int(k < 2) :]) <= 0.0)
        if k < 2:
            assert row[0] >= row[1], "the draft sent what it thinks likeliest"
    expected = float(logits[2, ranked[2][0]])
    if temperature:
        expected = expected / temperature + float(noise.gumbel(seed, 5, np.array(ranked[2][:1], np.int32))[0])
    assert float(scores[2][0]) == pytest.approx(expected)
    assert (
        len(predict_outcomes(ranked, sent, likeliest([outcome_probabilities(scores, "coupled")], 6)[0])) == 6
    )
