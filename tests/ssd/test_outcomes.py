"""Outcome prediction: candidates and their ranks, agreement with verification, and how likely each outcome is."""

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
from sonoran.sampling.proposals import Speculation
from sonoran.sampling.verification import verify
from sonoran.ssd.fan_out import likeliest
from sonoran.ssd.outcomes import (
    AverageOutcomes,
    ConfidenceWeight,
    OutcomePrediction,
    bonus_rank,
    outcome_probabilities,
    predict_outcomes,
    rank_rows,
    score_rows,
)
from sonoran.ssd.statistics import OutcomeStatistics
from sonoran.types import Outcome


def test_by_hand() -> None:
    ranked = [[5, 1, 2, 3], [7, 5, 5, 2], [4, 6, 4, 9]]
    assert predict_outcomes(ranked, [5, 2], [2, 2, 2]) == [
        (0, 1), (0, 2), (1, 7), (1, 5), (2, 4), (2, 6),
    ]  # fmt: skip
    assert predict_outcomes(ranked, [9, 9], [1, 0, 3]) == [(0, 5), (2, 4), (2, 6), (2, 9)]
    assert predict_outcomes([[3, 1]], [], [1]) == [(0, 3)]  # K = 0: nothing sent, nothing left out


tokens = st.integers(0, 9)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[list[int]], list[int], list[int]]:
    sent = draw(st.lists(tokens, max_size=4))
    size = len(sent) + 1
    ranked = draw(st.lists(st.lists(tokens, max_size=12), min_size=size, max_size=size))
    return ranked, sent, draw(st.lists(st.integers(0, 8), min_size=size, max_size=size))


@given(problems())
def test_guesses_are_distinct_legal_and_best_first(problem: tuple) -> None:
    ranked, sent, fan_out = problem
    branches = predict_outcomes(ranked, sent, fan_out)
    assert len(set(branches)) == len(branches)
    assert branches == predict_outcomes(ranked, sent, fan_out)
    for k, row in enumerate(ranked):
        legal = [t for t in dict.fromkeys(row) if k == len(sent) or t != sent[k]]
        assert [b.bonus for b in branches if b.accepted == k] == legal[: fan_out[k]]
        for token in range(10):
            rank = bonus_rank(ranked, sent, Outcome(k, token))
            assert rank == (legal.index(token) + 1 if token in legal else 0)
            assert (Outcome(k, token) in branches) == (1 <= rank <= fan_out[k])


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_a_full_fan_out_always_hits(rule: str, temperature: float, penalty: float) -> None:
    rng = np.random.default_rng(3)
    params = SamplingParams(temperature=temperature, repetition_penalty=penalty)
    vocab, prompt = 12, [1, 2, 3]
    seen = set()
    for seed in range(60):
        draft = rng.normal(size=(4, vocab)).astype(np.float32)
        target = (draft + rng.normal(size=draft.shape)).astype(np.float32)
        sent, distributions = [], []
        for i in range(3):
            token, q = draft_sample(rule, draft[i], prompt + sent, 3, params, seed, 3 + i)
            sent.append(token)
            distributions.append(q)
        speculation = Speculation(tuple(sent), tuple(distributions) if rule == "rejection" else ())
        verified = verify(rule, target, prompt, 3, speculation, params, seed, ())
        outcome = Outcome(verified.accepted, verified.bonus)
        ranked = rank_rows(rule, draft, sent, [vocab] * 4, prompt, 3, params, seed)
        assert [len(row) for row in ranked] == [vocab - 1] * 3 + [vocab]
        assert bonus_rank(ranked, sent, outcome) >= 1
        # Ranks are stable: asking for fewer candidates gives the head of the list.
        assert rank_rows(rule, draft, sent, [2, 0, 3, 1], prompt, 3, params, seed) == [
            row[:n] for row, n in zip(ranked, [2, 0, 3, 1], strict=True)
        ]
        seen.add(outcome.accepted)
    assert {0, 3} <= seen


def test_a_perfect_draft_needs_one_guess_under_the_shared_noise() -> None:
    rng = np.random.default_rng(4)
    params = SamplingParams(temperature=1.0)
    for seed in range(30):
        logits = rng.normal(size=(3, 50)).astype(np.float32)
        sent = [draft_sample("coupled", logits[i], [9], 1, params, seed, 1 + i)[0] for i in range(2)]
        verified = verify("coupled", logits, [9], 1, Speculation(tuple(sent)), params, seed, ())
        ranked = rank_rows("coupled", logits, sent, [1, 1, 1], [9], 1, params, seed)
        assert (verified.accepted, verified.bonus) in predict_outcomes(ranked, sent, [0, 0, 1])


def test_sizes_are_checked() -> None:
    with pytest.raises(ConfigError, match="2 sent tokens need 3 rows and fan-outs, got 3 and 2"):
        predict_outcomes([[1], [1], [1]], [1, 1], [1, 1])
    with pytest.raises(ConfigError, match="need 2 rows"):
        rank_rows("coupled", np.zeros((3, 5), np.float32), [1], [1, 1], [0], 1, SamplingParams(), 0)
    with pytest.raises(ConfigError, match="4 accepted tokens of a speculation of 1"):
        bonus_rank([[1], [1]], [1], Outcome(4, 0))


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


def test_the_average_follows_the_statistics_of_the_origin() -> None:
    statistics = OutcomeStatistics()
    average = AverageOutcomes(statistics)
    assert flat(average("primary", [64, 64])) <= 1.0 + 1e-9
    for _ in range(320):
        statistics.observe("primary", 1, Outcome(1, 5), 1)
    first, last = average("primary", [2, 100])
    assert len(last) == 100 and float(last[0]) > 0.85 and float(first.sum()) < 0.06
    assert float(average("draft", [2, 2])[1][0]) < float(last[0])


def test_the_weight_goes_to_what_predicts_better_and_comes_back() -> None:
    prediction = OutcomePrediction(
        [np.array([0.1, 0.05]), np.array([0.85])], [np.array([0.4, 0.1]), np.array([0.5])]
    )
    confidence = ConfidenceWeight()
    for _ in range(20):
        confidence.observe(prediction, Outcome(0, 7), 1)
    assert confidence.weight < 0.03
    for _ in range(20):
        confidence.observe(prediction, Outcome(1, 7), 1)
    assert confidence.weight > 0.9
    before = confidence.weight
    confidence.observe(prediction, Outcome(0, 9), 0)
    assert confidence.weight == before
    mixed = prediction.mixed(0.5)
    assert mixed[0] == pytest.approx([0.25, 0.075])
    assert mixed[1] == pytest.approx([0.675])
