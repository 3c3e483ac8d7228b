"""Sampling parameters: validation, normalisation, and errors that name the nearest valid value."""

import dataclasses

import pytest

from sonoran.errors import ConfigError
from sonoran.sampling import SamplingParams


@pytest.mark.parametrize(
    ("values", "fragment"),
    [
        ({"temperature": -0.1}, "nearest is 0"),
        ({"temperature": float("nan")}, "must be a number"),
        ({"temperature": 1e-6}, "at least 0.0001"),
        ({"temperature": True}, "must be a number"),
        ({"top_p": 0.0}, "top_p is 0"),
        ({"top_p": 1.2}, "nearest is 1"),
        ({"top_k": -2}, "at least -1"),
        ({"top_k": 2.5}, "whole number"),
        ({"min_p": 1.5}, "nearest is 1"),
        ({"seed": "7"}, "whole number"),
        ({"seed": 2**64}, "seed"),
        ({"max_tokens": 0}, "nearest is 1"),
        ({"min_tokens": 5, "max_tokens": 4}, "at most max_tokens, 4"),
        ({"stop": [""]}, "not empty"),
        ({"stop": 3}, "list of strings"),
        ({"stop_token_ids": [-1]}, "at least 0"),
        ({"stop_token_ids": "12"}, "list of token ids"),
        ({"logprobs": -1}, "nearest is 0"),
        ({"presence_penalty": 2.5}, "nearest is 2"),
        ({"frequency_penalty": -3}, "nearest is -2"),
        ({"repetition_penalty": 0}, "nearest is 0.01"),
        ({"logit_bias": {3: 101}}, "logit_bias[3]"),
        ({"logit_bias": {"x": 1}}, "a key of logit_bias"),
        ({"logit_bias": [1]}, "must map token ids"),
        ({"n": 0}, "n is 0"),
        ({"ignore_eos": 1}, "true or false"),
        ({"speculative": "no"}, "true or false"),
        ({"num_speculative_tokens": -1}, "nearest is 0"),
        ({"verification": "couple"}, "did you mean 'coupled'?"),
    ],
)
def test_bad_value_is_refused_with_the_nearest(values, fragment):
    with pytest.raises(ConfigError) as caught:
        SamplingParams(**values)
    assert fragment in str(caught.value)


def test_unknown_name_names_the_nearest():
    with pytest.raises(
        ConfigError, match="unknown sampling parameter 'temprature'; did you mean 'temperature'"
    ):
        SamplingParams.from_mapping({"temprature": 0.5})


def test_values_are_normalised():
    params = SamplingParams.from_mapping(
        {"stop": "END", "stop_token_ids": [3, 4], "top_k": -1, "logit_bias": {"12": -100}, "temperature": 0}
    )
    assert params.stop == ("END",)
    assert params.stop_token_ids == (3, 4)
    assert params.top_k == 0
    assert params.logit_bias == {12: -100.0}
    assert params.greedy


def test_frozen_and_replaceable():
    params = SamplingParams(top_p=0.9)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.top_p = 0.5
    with pytest.raises(ConfigError):
        dataclasses.replace(params, top_p=2.0)
    assert dataclasses.replace(params, seed=3).top_p == 0.9


def test_token_ids_are_checked_against_the_vocabulary():
    SamplingParams(stop_token_ids=[9], logit_bias={9: 1}).check_vocabulary(10)
    with pytest.raises(ConfigError, match="logit_bias names token 10; the largest token id is 9"):
        SamplingParams(logit_bias={10: 1}).check_vocabulary(10)
