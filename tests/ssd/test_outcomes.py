"""Outcome prediction: exclusion, k = 0 and k = K, duplicates, ranks, agreement with verification."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.errors import ConfigError
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.verification import Speculation, draft_sample, verify
from sonoran.ssd.outcomes import bonus_rank, predict_outcomes, rank_rows
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
        sent, laws = [], []
        for i in range(3):
            token, law = draft_sample(rule, draft[i], prompt + sent, 3, params, seed, 3 + i)
            sent.append(token)
            laws.append(law)
        speculation = Speculation(tuple(sent), tuple(laws) if rule == "rejection" else ())
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
