"""Verification: identity with plain decoding, full acceptance of the target itself, log-probabilities."""

import numpy as np
import pytest

from sonoran.errors import ConfigError, NumericsError
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.proposals import EMPTY, PointMass, SparseDistribution, Speculation, UniformDistribution
from sonoran.sampling.verification import token_logprob, verify
from tests.sampling.sampled import sampled_distribution
from tests.sampling.toy import EOS, Toy, decode, model_drafter, ngram_drafter, random_drafter

VOCAB = 12
PROMPT = [3, 5, 7]
TARGET = Toy.random(1, VOCAB)
PARAMETERS = [
    {},
    {"temperature": 0.3},
    {"temperature": 1.3, "top_k": 5},
    {"top_p": 0.8},
    {"temperature": 0.7, "min_p": 0.1},
    {"temperature": 1.1, "presence_penalty": 0.8, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    {"temperature": 0.9, "top_k": 8, "top_p": 0.9, "min_p": 0.02, "logit_bias": {2: 2.0, 4: -3.0}},
    {"min_tokens": 30, "stop_token_ids": [1], "frequency_penalty": 0.3},
    {"logprobs": 3, "top_p": 0.9},
]
GREEDY = [{**values, "temperature": 0} for values in ({}, PARAMETERS[5], PARAMETERS[7])]


def drafters(rule, params, seed):
    return {
        "good": model_drafter(TARGET.near(2, 0.5), rule, params, seed),
        "bad": model_drafter(Toy.random(9, VOCAB), rule, params, seed),
        "ngram": ngram_drafter,
        "random": random_drafter(VOCAB, seed),
    }


@pytest.mark.parametrize("values", PARAMETERS, ids=str)
@pytest.mark.parametrize("kind", ["good", "bad", "ngram", "random"])
def test_coupled_text_is_that_without_speculation(values, kind):
    params = SamplingParams(**values)
    for seed in (0, 1, 2, 2**64 - 1):
        expected, _, expected_logprobs = decode(TARGET, None, [0], PROMPT, params, seed, 60, "coupled")
        for lengths in ([4], [1, 0, 7, 2]):
            drafter = drafters("coupled", params, seed)[kind]
            found, _, logprobs = decode(TARGET, drafter, lengths, PROMPT, params, seed, 60, "coupled")
            assert found == expected
            assert logprobs == expected_logprobs


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("values", GREEDY, ids=str)
def test_greedy_text_is_the_same_under_both_rules(values, rule):
    params = SamplingParams(**values)
    expected = list(PROMPT)
    for _ in range(80):
        found = sampled_distribution(TARGET.row(expected), expected, len(PROMPT), params, EOS)
        expected.append(int(found.ids[0]))
    for kind, drafter in drafters(rule, params, 5).items():
        found, _, _ = decode(TARGET, drafter, [3, 5], PROMPT, params, 5, 80, rule)
        assert found == expected, kind


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("values", PARAMETERS + GREEDY, ids=str)
def test_a_draft_equal_to_the_target_is_always_accepted(values, rule):
    params = SamplingParams(**values)
    for seed in range(5):
        drafter = model_drafter(TARGET, rule, params, seed)
        _, acceptance, _ = decode(TARGET, drafter, [5], PROMPT, params, seed, 120, rule)
        assert acceptance == 1.0


def test_good_drafts_are_accepted_more_often():
    params = SamplingParams()
    for rule in ("coupled", "rejection"):
        rates = {}
        for kind in ("good", "bad"):
            rates[kind] = 0.0
            for seed in range(4):
                drafter = drafters(rule, params, seed)[kind]
                rates[kind] += decode(TARGET, drafter, [4], PROMPT, params, seed, 100, rule)[1] / 4
        assert rates["good"] > 0.4 > rates["bad"]


def test_text_depends_on_the_seed_and_is_reproducible():
    params = SamplingParams()
    for rule in ("coupled", "rejection"):
        texts = [decode(TARGET, None, [0], PROMPT, params, seed, 60, rule)[0] for seed in (1, 1, 2)]
        assert texts[0] == texts[1] != texts[2]


def test_acceptance_under_common_noise_is_at_least_the_bound():
    """At least (1 - TV) / (1 + TV) (arXiv 2408.07978)."""
    rng = np.random.default_rng(6)
    p, q = (rng.normal(size=8).astype(np.float32) for _ in range(2))
    params = SamplingParams()
    both = [sampled_distribution(row, [], 0, params).probabilities for row in (p, q)]
    distance = 0.5 * np.abs(both[0] - both[1]).sum()
    same = [
        verify("coupled", p[None], [0] * n, 0, EMPTY, params, 4, ()).tokens
        == verify("coupled", q[None], [0] * n, 0, EMPTY, params, 4, ()).tokens
        for n in range(4000)
    ]
    assert np.mean(same) > (1 - distance) / (1 + distance) - 0.025


def test_logprobs_are_the_targets_at_every_emitted_position():
    params = SamplingParams(temperature=0.5, top_k=3, presence_penalty=1.0, logprobs=2)
    drafter = model_drafter(TARGET.near(2, 0.3), "coupled", params, 8)
    tokens, _, logprobs = decode(TARGET, drafter, [4], PROMPT, params, 8, 50, "coupled")
    assert len(logprobs) == 50
    for i, found in enumerate(logprobs):
        context = tokens[: len(PROMPT) + i]
        assert found == token_logprob(TARGET.row(context), tokens[len(PROMPT) + i], 2)


def test_rows_may_be_slices_of_a_padded_vocabulary():
    padded = np.full((3, VOCAB + 20), 50.0, np.float32)
    padded[:, :VOCAB] = [TARGET.row([1, i]) for i in range(3)]
    params = SamplingParams(logprobs=1)
    speculation = Speculation((1, 2))
    found = verify("coupled", padded[:, :VOCAB], PROMPT, 3, speculation, params, 1, ())
    assert found == verify("coupled", padded[:, :VOCAB].copy(), PROMPT, 3, speculation, params, 1, ())
    assert max(found.tokens) < VOCAB


def test_impossible_proposals_are_rejected_not_fatal():
    """A draft may know tokens that the target lacks or that the truncation removed."""
    rows = np.stack([TARGET.row([1, 2])] * 2)
    params = SamplingParams(top_k=2)
    for token in (VOCAB, 10**6, int(np.argmin(rows[0]))):
        assert verify("coupled", rows, PROMPT, 3, Speculation((token,)), params, 1, ()).accepted == 0
        assert verify("rejection", rows, PROMPT, 3, Speculation.chosen([token]), params, 1, ()).accepted == 0


def test_equal_distributions_never_leave_an_empty_residual():
    """When only rounding makes p < q, the fallback draws from p instead of dividing by zero."""
    row = np.zeros((2, 4), np.float32)
    q = SparseDistribution(np.arange(4, dtype=np.int32), np.full(4, 0.25 * (1 + 1e-3)))
    params = SamplingParams()
    tokens = [
        verify("rejection", row, [0] * n, 0, Speculation((n % 4,), (q,)), params, 1, ()).tokens[0]
        for n in range(8_000)
    ]
    assert np.bincount(tokens, minlength=4) == pytest.approx(2000, abs=200)


@pytest.mark.parametrize(
    ("speculation", "fragment"),
    [
        (Speculation((1,)), "got none"),
        (
            Speculation((1,), (SparseDistribution(np.array([2], np.int32), np.ones(1)),)),
            "token 1 has probability 0",
        ),
        (Speculation((5,), (UniformDistribution(5),)), "token 5 has probability 0"),
    ],
)
def test_rejection_needs_a_distribution_that_can_be_true(speculation, fragment):
    rows = np.zeros((2, 6), np.float32)
    with pytest.raises(ConfigError, match=fragment):
        verify("rejection", rows, PROMPT, 3, speculation, SamplingParams(), 1, ())


def test_shapes_are_checked():
    with pytest.raises(ConfigError, match="1 proposed tokens need 2 rows"):
        verify("coupled", np.zeros((1, 6), np.float32), PROMPT, 3, Speculation((1,)), SamplingParams(), 1, ())
    with pytest.raises(ConfigError, match="2 tokens needs one distribution each, got 1"):
        Speculation((1, 2), (PointMass(),))
    with pytest.raises(NumericsError):
        verify("coupled", np.full((1, 6), np.nan, np.float32), PROMPT, 3, EMPTY, SamplingParams(), 1, ())
