"""Saguaro sampling: Definition 14, Theorem 19, and what holds of Theorem 15."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.errors import ConfigError
from sonoran.sampling import rowops
from sonoran.sampling.logits import cut_of
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.proposals import Speculation
from sonoran.sampling.verification import verify
from sonoran.ssd.saguaro import leading_order, saguaro_sample, saguaro_scores

STEPS_OF_C = (1.0, 0.8, 0.6, 0.4, 0.2, 0.1, 0.05, 0.0)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def acceptance(target: np.ndarray, draft: np.ndarray) -> float:
    return float(np.minimum(target, draft).sum())


def rejection_hit_rate(
    target: np.ndarray,
    draft: np.ndarray,
    order: np.ndarray,
    fan_out: int,
    *,
    exclude_sent: bool = True,
) -> float:
    """Return the probability that the bonus token after a rejection is among the guesses.

    ``target`` and ``draft`` are distributions of the position, ``order`` the draft's tokens from the likeliest on
    (before sigma). The guesses are the first ``fan_out``; with ``exclude_sent`` the rejected token is
    skipped, which admits the next one. 1 when nothing is ever rejected, as in the proof of Theorem 15.
    """
    residual, rejected = np.maximum(target - draft, 0.0), np.maximum(draft - target, 0.0)
    if not residual.sum() > 0.0 or not rejected.sum() > 0.0:
        return 1.0
    residual, rejected = residual / residual.sum(), rejected / rejected.sum()
    leading = order[:fan_out]
    hit = float(residual[leading].sum())
    if exclude_sent and fan_out < len(order):
        hit += float(rejected[leading].sum() * residual[order[fan_out]])
    return hit


def test_definition_14() -> None:
    z = np.log([0.1, 0.4, 0.3, 0.2])
    assert softmax(saguaro_scores(z, 2, 0.5)) == pytest.approx(np.array([0.1, 0.2, 0.15, 0.2]) / 0.65)
    assert softmax(saguaro_scores(z, 2, 0.0)) == pytest.approx([1 / 3, 0, 0, 2 / 3])
    assert saguaro_scores(z, 2, 1.0) == pytest.approx(z)
    assert saguaro_scores(z, 0, 0.0) == pytest.approx(z)


def test_theorem_19() -> None:
    target = np.array([0.48, 0.48, 0.02, 0.02])
    draft = np.array([0.49, 0.49, 0.01, 0.01])
    order = leading_order(np.log(draft))
    changed = softmax(saguaro_scores(np.log(draft), 2, 47 / 147))
    assert changed == pytest.approx([0.47, 0.47, 0.03, 0.03])
    assert acceptance(target, draft) == pytest.approx(0.98)
    assert acceptance(target, changed) == pytest.approx(0.98)
    assert rejection_hit_rate(target, draft, order, 2) == pytest.approx(0.5)
    assert rejection_hit_rate(target, changed, order, 2) == pytest.approx(1.0)


logit_lists = st.lists(st.floats(-6, 6), min_size=2, max_size=9)


@st.composite
def contexts(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    z = draw(logit_lists)
    t = draw(st.lists(st.floats(-6, 6), min_size=len(z), max_size=len(z)))
    return np.array(z), softmax(np.array(t)), draw(st.integers(1, len(z)))


@given(contexts())
def test_theorem_15_holds_for_fixed_guesses(context: tuple[np.ndarray, np.ndarray, int]) -> None:
    z, target, fan_out = context
    order = leading_order(z)
    rates = [
        rejection_hit_rate(target, softmax(saguaro_scores(z, fan_out, c)), order, fan_out, exclude_sent=False)
        for c in STEPS_OF_C
    ]
    if fan_out < len(z):
        assert all(after >= before - 1e-9 for before, after in itertools.pairwise(rates))


def test_theorem_15_fails_once_the_sent_token_is_excluded() -> None:
    # One guess. At C = 1 the rejected token is always the leader 0, so the guess is token 1, the whole
    # residual. At C = 0.75 token 2 is over-proposed too; when it is rejected the guess is token 0, which the
    # residual does not hold.
    target, z = np.array([0.5, 0.3, 0.2]), np.log([0.6, 0.2, 0.2])
    order = leading_order(z)
    rates = [rejection_hit_rate(target, softmax(saguaro_scores(z, 1, c)), order, 1) for c in (1.0, 0.75, 0.0)]
    assert rates[0] == pytest.approx(1.0)
    assert rates[1] < rates[0] - 0.1


def test_c_0_beats_c_1_in_nearly_every_context() -> None:
    rng = np.random.default_rng(0)
    falls = {3: 0, 4: 0}
    better = 0
    for _ in range(200):
        z = 3.0 * rng.normal(size=1000)
        target = softmax(z + rng.normal(size=1000))
        order = leading_order(z)
        for size in falls:  # the set is the guesses, or one more
            rates = [
                rejection_hit_rate(target, softmax(saguaro_scores(z, size, c)), order, 3) for c in STEPS_OF_C
            ]
            falls[size] += any(b < a - 1e-9 for a, b in itertools.pairwise(rates))
            if size == 3:
                better += rates[-1] >= rates[0]
    assert better >= 0.96 * 200
    assert 0.03 * 200 <= falls[3] <= 0.18 * 200
    assert falls[4] > falls[3]


@given(logit_lists, st.integers(0, 12), st.floats(0.0, 1.0))
def test_the_set_is_deterministic_and_guarded(z: list[float], fan_out: int, c: float) -> None:
    scores = np.round(np.array(z))  # many ties
    got = saguaro_scores(scores, fan_out, c)
    leaders = sorted(range(len(z)), key=lambda i: (-scores[i], i))[:fan_out]
    if c == 0.0 and fan_out >= len(z):
        assert np.array_equal(got, scores)
    else:
        shift = math.log(c) if c > 0 else -math.inf
        expected = [s + shift if i in leaders else s for i, s in enumerate(scores)]
        assert np.array_equal(got, expected)
    assert np.any(got > -np.inf)
    # Carrying ids in another order changes nothing.
    ids = np.arange(len(z))[::-1].astype(np.int32)
    assert np.array_equal(saguaro_scores(scores[::-1], fan_out, c, ids)[::-1], got)


def test_all_the_mass_in_the_set() -> None:
    scores = np.array([0.0, -np.inf, -np.inf])
    assert np.array_equal(saguaro_scores(scores, 1, 0.0), scores)


def test_sampling_declares_the_distribution_it_used() -> None:
    logits = np.random.default_rng(1).normal(size=40).astype(np.float32) * 2
    params = SamplingParams(temperature=0.7)
    expected = softmax(saguaro_scores(rowops.select(logits, cut_of(params)).x, 3, 0.25))
    counts = np.zeros(40)
    for seed in range(4000):
        token, drawn = saguaro_sample(logits, [0], 1, params, seed, 1, 3, 0.25)
        counts[token] += 1
    assert drawn.probabilities == pytest.approx(expected, abs=1e-9)
    # Chi-square over the tokens that are expected often enough; 99.99 % quantile of 30 degrees of freedom
    # is 69.
    often = expected * 4000 > 10
    chi = float(np.sum((counts - 4000 * expected)[often] ** 2 / (4000 * expected[often])))
    assert chi < 69.0
    token, one = saguaro_sample(logits, [0], 1, SamplingParams(temperature=0.0), 1, 1, 3, 0.0)
    assert token == int(np.argmax(logits))
    assert one.probability(token) == 1.0


@pytest.mark.parametrize("c", [0.0, 0.3])
def test_it_is_lossless(c: float) -> None:
    rng = np.random.default_rng(2)
    draft, target = (rng.normal(size=(1, 6)).astype(np.float32) for _ in range(2))
    params = SamplingParams(temperature=1.0)
    rows = np.concatenate([target, target])
    counts, total = np.zeros(6), 6000
    for seed in range(total):
        token, drawn = saguaro_sample(draft[0], [0], 1, params, seed, 1, 2, c)
        verified = verify("rejection", rows, [0], 1, Speculation((token,), (drawn,)), params, seed, ())
        counts[verified.tokens[0]] += 1
    expected = total * softmax(target[0].astype(np.float64))
    # 99.99 % quantile of chi-square with 5 degrees of freedom is 25.7.
    assert float(np.sum((counts - expected) ** 2 / expected)) < 25.7


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"got 1\.5; nearest valid value: 1"):
        saguaro_scores(np.zeros(3), 1, 1.5)
    with pytest.raises(ConfigError, match="fan_out must be >= 0, got -1"):
        saguaro_scores(np.zeros(3), -1, 0.5)
