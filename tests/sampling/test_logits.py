"""From logits and parameters to the distribution: against a naive second implementation, and the documented rules."""

import itertools

import numpy as np
import pytest

from sonoran.errors import ConfigError, NumericsError
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.verification import token_logprob
from tests.oracles.distribution import naive_distribution
from tests.oracles.portable import MAX_VOCAB
from tests.sampling.sampled import sampled_distribution

PENALTIES = {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.3}
CASES = [
    {"temperature": temperature, **truncation, **penalties}
    for temperature, truncation, penalties in itertools.product(
        (0.0, 0.3, 1.0, 1.7),
        (
            {},
            {"top_k": 7},
            {"top_p": 0.8},
            {"min_p": 0.1},
            {"top_k": 9, "top_p": 0.7, "min_p": 0.02},
        ),
        (
            {},
            PENALTIES,
            {"logit_bias": {3: 4.0, 5: -100.0}, "min_tokens": 9, "stop_token_ids": (1,)},
            {
                "bad_word_ids": ((3,), *((i, j) for i in range(40) for j in range(0, 40, 3)), (0, 1, 2)),
                "allowed_token_ids": range(1, 40, 2),
            },
        ),
    )
]


@pytest.mark.parametrize("values", CASES, ids=str)
def test_equals_the_naive_implementation(values):
    rng = np.random.default_rng(3)
    params = SamplingParams(**values)
    for _ in range(20):
        logits = (3 * rng.normal(size=40)).astype(np.float32)
        prefix = rng.integers(0, 40, 30).tolist()
        expected = naive_distribution(logits, prefix, 22, params, eos_ids=(2,))
        found = sampled_distribution(logits, prefix, 22, params, eos_ids=(2,))
        assert found.ids.tolist() == sorted(expected)
        assert found.probabilities == pytest.approx([expected[t] for t in sorted(expected)], rel=1e-5)


def test_logits_are_not_changed():
    logits = np.arange(5, dtype=np.float32)
    sampled_distribution(logits, [1, 2], 0, SamplingParams(logit_bias={1: 5}, **PENALTIES))
    assert logits.tolist() == [0, 1, 2, 3, 4]


def test_prompt_and_output_are_told_apart():
    """Presence and frequency look at the output, repetition at the prompt too (as in vLLM and OpenAI)."""
    logits = np.full(4, 2.0, np.float32)
    prefix, prompt_length = [0, 1, 1], 1

    def logprobs(**penalty):
        return np.log(
            sampled_distribution(logits, prefix, prompt_length, SamplingParams(**penalty)).probabilities
        )

    presence = logprobs(presence_penalty=1.0)
    assert presence[0] == presence[2] == presence[3]
    assert presence[0] - presence[1] == pytest.approx(1.0)
    frequency = logprobs(frequency_penalty=1.0)
    assert frequency[0] - frequency[1] == pytest.approx(2.0)
    repetition = logprobs(repetition_penalty=2.0)
    assert repetition[2] - repetition[0] == pytest.approx(1.0)
    assert repetition[2] - repetition[1] == pytest.approx(1.0)


def test_ties_go_to_the_lower_id():
    logits = np.array([1.0, 3.0, 3.0, 3.0, 0.0], np.float32)
    assert sampled_distribution(logits, [], 0, SamplingParams(temperature=0)).ids.tolist() == [1]
    assert sampled_distribution(logits, [], 0, SamplingParams(top_k=2)).ids.tolist() == [1, 2]
    assert sampled_distribution(logits, [], 0, SamplingParams(top_p=0.4)).ids.tolist() == [1, 2]


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125])).astype(np.float32)
    for top_p, size in ((0.1, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.9, 4), (1.0, 4)):
        assert len(sampled_distribution(logits, [], 0, SamplingParams(top_p=top_p)).ids) == size


def test_min_tokens_forbids_what_would_end_the_request():
    logits = np.zeros(4, np.float32)
    params = {"min_tokens": 2, "stop_token_ids": (3,)}
    assert sampled_distribution(logits, [0, 0], 1, SamplingParams(**params), (2,)).ids.tolist() == [0, 1]
    assert sampled_distribution(logits, [0, 0, 0], 1, SamplingParams(**params), (2,)).ids.tolist() == [
        0,
        1,
        2,
        3,
    ]
    ignoring = SamplingParams(ignore_eos=True, **params)
    assert sampled_distribution(logits, [0, 0], 1, ignoring, (2,)).ids.tolist() == [0, 1, 2]


def test_ids_beyond_the_row_are_ignored():
    """A draft may have fewer tokens than the target."""
    params = SamplingParams(logit_bias={9: 5.0}, stop_token_ids=(8,), min_tokens=5, **PENALTIES)
    assert len(sampled_distribution(np.zeros(4, np.float32), [7, 9, 9], 1, params, (7,)).ids) == 4


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
def test_bad_logits_are_refused(bad):
    for position in (0, 70, 129):
        logits = np.zeros(130, np.float32)
        logits[position] = bad
        with pytest.raises(NumericsError):
            sampled_distribution(logits, [], 0, SamplingParams())
        with pytest.raises(NumericsError):
            sampled_distribution(logits, [], 0, SamplingParams(temperature=0))


def test_impossible_rows_are_refused():
    with pytest.raises(NumericsError):
        sampled_distribution(np.full(3, -np.inf, np.float32), [], 0, SamplingParams())
    with pytest.raises(NumericsError):
        sampled_distribution(np.zeros(0, np.float32), [], 0, SamplingParams())
    with pytest.raises(ConfigError, match=str(MAX_VOCAB)):
        sampled_distribution(np.zeros(MAX_VOCAB + 1, np.float32), [], 0, SamplingParams())


def test_token_logprob_is_that_of_the_model():
    rng = np.random.default_rng(4)
    row = (4 * rng.normal(size=1000)).astype(np.float32)
    expected = row - np.log(np.sum(np.exp(row.astype(np.float64))))
    found = token_logprob(row, 17, 5)
    assert found.logprob == pytest.approx(expected[17], abs=1e-7)
    order = np.argsort(-row)[:5]
    assert [token for token, _ in found.top] == order.tolist()
    assert [value for _, value in found.top] == pytest.approx(expected[order].tolist(), abs=1e-7)
    assert token_logprob(row, 17, 0).top == ()
