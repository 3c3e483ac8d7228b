"""The draft's side: exact distributions, and the ranking of bonus tokens."""

import numpy as np
import pytest

from sonoran.sampling import noise
from sonoran.sampling.drafts import SUPPORT_SIZE, draft_chance, draft_sample, rank_candidates, sample_weights
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.proposals import EMPTY, PointMass, SparseDistribution
from sonoran.sampling.verification import verify
from tests.sampling.sampled import sampled_distribution

RNG = np.random.default_rng(12)


def rank(row, params, position, rule, n, exclude=None, seed=3):
    return rank_candidates(row, [], params, seed, position, rule, n, exclude, prompt_length=0)


def test_proposals_come_from_the_truncated_distribution():
    row = (2 * RNG.normal(size=2000)).astype(np.float32)
    params = SamplingParams(temperature=0.9)
    token, q = draft_sample("rejection", row, [], 0, params, 1, 5)
    assert len(q.ids) == SUPPORT_SIZE
    assert q.probabilities.sum() == pytest.approx(1.0, abs=1e-12)
    assert q.ids.tolist() == sorted(np.argsort(-row, kind="stable")[:SUPPORT_SIZE].tolist())
    full = sampled_distribution(row, [], 0, params)
    expected = full.probabilities[q.ids] / full.probabilities[q.ids].sum()
    assert q.probabilities == pytest.approx(expected, rel=1e-6)
    assert q.probability(token) > 0
    assert q.probability(int(np.argmin(row))) == 0.0


def test_draws_follow_the_distribution():
    row = RNG.normal(size=5).astype(np.float32)
    draws = [
        draft_sample("rejection", row, [], 0, SamplingParams(), 2, position) for position in range(20_000)
    ]
    q = draws[0][1]
    counts = np.bincount([token for token, _ in draws], minlength=5)
    assert counts / 20_000 == pytest.approx(q.probabilities, abs=0.012)


def test_sample_weights_leaves_out_what_cannot_be_drawn():
    ids, weights = np.array([2, 5, 9], np.int32), np.array([0, 3, 1], np.int64)
    drawn = {sample_weights(ids, weights, 1, position)[0] for position in range(200)}
    assert drawn == {5, 9}
    q = sample_weights(ids, weights, 1, 0)[1]
    assert q.ids.tolist() == [5, 9]
    assert q.probabilities.tolist() == [0.75, 0.25]


def test_greedy_proposals_are_points():
    row = np.array([0.0, 2.0, 1.0], np.float32)
    params = SamplingParams(temperature=0)
    assert draft_sample("coupled", row, [], 0, params, 1, 4) == (1, None)
    assert draft_sample("rejection", row, [], 0, params, 1, 4) == (1, PointMass())


def test_first_candidate_is_the_token_itself():
    """With the target's own logits, the ranking's head is the bonus token, and without it the runner-up."""
    row = RNG.normal(size=50).astype(np.float32)
    params = SamplingParams(temperature=1.2, top_p=0.9)
    for position in range(50):
        ranked = rank(row, params, position, "coupled", 50)
        bonus = verify("coupled", row[None], [0] * position, 0, EMPTY, params, 3, ()).bonus
        assert ranked[0] == bonus
        assert sorted(ranked) == list(range(50))
        assert rank(row, params, position, "coupled", 5, bonus) == ranked[1:6]


def test_survivors_come_first_then_the_rest_by_score():
    row = RNG.normal(size=30).astype(np.float32)
    params = SamplingParams(top_k=4)
    scores = row.astype(np.float64) + noise.gumbel(3, 7, np.arange(30))
    kept = set(sampled_distribution(row, [], 0, params).ids.tolist())
    expected = sorted(range(30), key=lambda token: (token not in kept, -scores[token]))
    assert rank(row, params, 7, "coupled", 12) == expected[:12]
    assert rank(row, params, 7, "coupled", 12, expected[0]) == expected[1:13]
    assert rank(row, params, 7, "coupled", 12, expected[5]) == [*expected[:5], *expected[6:13]]


@pytest.mark.parametrize(("rule", "temperature"), [("rejection", 1.0), ("coupled", 0.0), ("rejection", 0.0)])
def test_without_shared_noise_logits_decide(rule, temperature):
    row = np.array([1.0, 3.0, 3.0, 0.5, 2.0], np.float32)
    params = SamplingParams(temperature=temperature)
    assert rank(row, params, 0, rule, 3) == [1, 2, 4]
    assert rank(row, params, 0, rule, 3, 2) == [1, 4, 0]


def test_small_vocabularies_give_fewer():
    row = np.zeros(3, np.float32)
    assert sorted(rank(row, SamplingParams(), 0, "coupled", 9)) == [0, 1, 2]
    assert len(rank(row, SamplingParams(), 0, "rejection", 9, 1)) == 2
    assert rank(row, SamplingParams(), 0, "coupled", 0) == []


def test_ranking_sees_penalties_and_forbidden_tokens():
    row = np.array([1.0, 1.1, 1.2, 0.0], np.float32)
    params = SamplingParams(temperature=0, repetition_penalty=2.0, min_tokens=5)
    ranked = rank_candidates(row, [2, 2], params, 1, 2, "coupled", 4, prompt_length=1, eos_ids=(1,))
    assert ranked == [0, 2, 3]


def test_the_chance_of_an_own_token_is_its_share_of_the_leading_scores():
    row = np.log(np.array([0.1, 0.5, 0.3, 0.1])).astype(np.float32)
    assert draft_chance("coupled", row, 1, None, SamplingParams(temperature=0.0), 1, 5) == pytest.approx(0.5)
    q = SparseDistribution(np.array([1, 3], np.int32), np.array([0.75, 0.25]))
    assert draft_chance("rejection", row, 3, q, SamplingParams(temperature=1.0), 1, 5) == pytest.approx(0.5)
    params = SamplingParams(temperature=2.0)
    token, _ = draft_sample("coupled", row, [], 0, params, 9, 5)
    scores = row / 2.0 + noise.gumbel(9, 5, np.arange(4))
    weights = np.exp(scores - scores.max())
    assert scores.argmax() == token
    assert draft_chance("coupled", row, token, None, params, 9, 5) == pytest.approx(
        weights.max() / weights.sum()
    )


def test_chances_foretell_how_often_a_noisy_target_agrees():
    """The draft's scores and the target's differ by noise; tokens with a chance of 60 to 80 % agree about as often."""
    rng, agreed = np.random.default_rng(4), []
    for position in range(4000):
        row = (2 * rng.normal(size=5)).astype(np.float32)
        chance = draft_chance(
            "coupled", row, int(row.argmax()), None, SamplingParams(temperature=0.0), 0, position
        )
        if 0.6 < chance < 0.8:
            target = row + rng.gumbel(size=5)
            agreed.append(int(target.argmax()) == int(row.argmax()))
    assert len(agreed) > 200
    assert np.mean(agreed) == pytest.approx(0.7, abs=0.06)
