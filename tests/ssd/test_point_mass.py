"""The law of an engine that draws by itself and takes proposals for certain: what a draft proposes and expects."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from sonoran.sampling.drafts import draft_chance, draft_sample
from sonoran.sampling.params import SamplingParams
from sonoran.ssd.messages import Item, Prefill, Speculate
from sonoran.ssd.outcomes import outcome_probabilities, rank_rows, score_rows
from sonoran.types import FloatArray, Outcome
from tests.worker.local import LocalDrafter, toy_model

VOCAB, K, DRAWS = 6, 3, 20_000
PROMPT = [3, 1, 4, 1, 5]


def softmax(row: FloatArray, temperature: float) -> np.ndarray:
    weights = np.exp((row.astype(np.float64) - float(row.max())) / temperature)
    return weights / weights.sum()


def verify_point_masses(
    rows: FloatArray, sent: list[int], temperature: float, rng: np.random.Generator
) -> Outcome:
    """Accept each proposal x with p(x), otherwise draw from the others: the oracle, as vLLM's sampler does it."""
    for k, token in enumerate(sent):
        p = softmax(rows[k], temperature)
        if rng.random() < p[token]:
            continue
        p[token] = 0.0
        return Outcome(k, int(rng.choice(VOCAB, p=p / p.sum())))
    return Outcome(len(sent), int(rng.choice(VOCAB, p=softmax(rows[-1], temperature))))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_outcomes_come_as_often_as_predicted_when_draft_and_target_are_the_same(temperature: float) -> None:
    rng = np.random.default_rng(7)
    rows = rng.normal(0.0, 1.5, (K + 1, VOCAB)).astype(np.float32)
    params = SamplingParams(temperature=temperature)
    sent = [draft_sample("point_mass", row, [], 1, params, 5, 9)[0] for row in rows[:K]]
    assert sent == [int(row.argmax()) for row in rows[:K]], "the likeliest token is accepted most often"
    ranked = rank_rows("point_mass", rows, sent, [VOCAB] * (K + 1), PROMPT, 5, params, 5)
    scores = score_rows("point_mass", rows, sent, ranked, PROMPT, 5, params, 5)
    predicted = {
        Outcome(k, token): float(chance)
        for k, (tokens, chances) in enumerate(
            zip(ranked, outcome_probabilities(scores, "point_mass"), strict=True)
        )
        for token, chance in zip(tokens, chances, strict=True)
    }
    assert sum(predicted.values()) == pytest.approx(1.0)
    assert all(chance == 0.0 or token != sent[k] for (k, token), chance in predicted.items() if k < K)
    seen = Counter(verify_point_masses(rows, sent, temperature, rng) for _ in range(DRAWS))
    assert set(seen) <= set(predicted)
    likely = [outcome for outcome, chance in predicted.items() if chance * DRAWS >= 5.0]
    rest = 1.0 - sum(predicted[outcome] for outcome in likely)
    expected = [*(predicted[outcome] for outcome in likely), rest]
    counted = [*(seen[outcome] for outcome in likely), DRAWS - sum(seen[outcome] for outcome in likely)]
    if rest * DRAWS < 5.0:
        expected, counted = expected[:-1], counted[:-1]
    fit = stats.chisquare(counted, np.array(expected) * (sum(counted) / sum(expected)))
    assert fit.pvalue > 1e-4


def test_the_chance_of_acceptance_is_the_probability() -> None:
    row = np.array([2.0, 1.0, 0.5, -9.0, -9.0, -9.0], np.float32)
    for temperature in (0.4, 1.0):
        chance = draft_chance("point_mass", row, 0, None, SamplingParams(temperature=temperature), 3, 9)
        assert chance == pytest.approx(softmax(row, temperature)[0], abs=1e-4)


@pytest.mark.parametrize("law", ["point_mass", None])
def test_what_was_not_verified_is_sent_again(law: str | None) -> None:
    """A target that verified fewer tokens than were sent, and drew the next one itself, gets those that follow it."""
    drafter = LocalDrafter(toy_model(noise=0.0, salt=0), backup="draft", least_chance=0.0)
    worker = drafter.worker
    params = SamplingParams(temperature=1.0 if law else 0.0)
    assert worker.prefill(Prefill(1, 1, PROMPT, len(PROMPT), 3, params, law))
    first = worker.speculate([Item(1, 1, len(PROMPT), [7], 4, -1)])
    assert first is not None
    sent = first.answers[0].tokens
    assert len(sent) == 4
    second = worker.speculate([Item(1, 1, len(PROMPT) + 1, sent[:2], 4, 1)])
    assert second is not None
    answer = second.answers[0]
    assert (answer.origin, answer.tokens[:2]) == ("primary", sent[2:])
    last = worker.session.speculator.speculate(Speculate(9, [Item(1, 1, len(PROMPT) + 3, [sent[2]], 0, 0)]))
    assert last.answers[0].tokens == []
