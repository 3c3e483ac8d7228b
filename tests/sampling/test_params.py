"""Sampling parameters: validation, normalisation, and errors that name the nearest valid value."""

import copy
import dataclasses
import pickle

import msgspec
import numpy as np
import pytest

from sonoran.errors import ConfigError
from sonoran.sampling.params import SamplingParams


@pytest.mark.parametrize(
    ("values", "fragment"),
    [
        ({"temperature": -0.1}, "nearest is 0"),
        ({"temperature": float("nan")}, "must be a number"),
        ({"temperature": 2e-5}, "at least 0.0001"),
        ({"temperature": 10**400}, "nearest is 10000"),
        ({"temperature": "1"}, "must be a number"),
        ({"logit_bias": {1: 10**400}}, "nearest is 100"),
        ({"logit_bias": {"9" * 6000: 1}}, "a key of logit_bias"),
        ({"max_tokens": 10**5000}, "a number of thousands of digits"),
        ({"top_k": 2**40}, "nearest is 2147483647"),
        ({"n": 20_000_000}, "n is 20000000; it must be from 1 to 1024; the nearest is 1024"),
        ({"max_token": 5}, "unknown sampling parameter 'max_token'; did you mean 'max_tokens'?"),
        ({"length_penalty": 2}, "unknown sampling parameter 'length_penalty'"),
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


def test_sampling_parameters_have_names():
    with pytest.raises(ConfigError, match=r"have names, such as temperature=0\.8; got 0\.5"):
        SamplingParams(0.5)


def test_almost_no_temperature_is_greedy_and_seed_minus_one_is_none():
    assert SamplingParams(temperature=1e-6).temperature == 0.0
    assert SamplingParams(temperature=1e-6).greedy
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(seed=-2).seed == -2


def test_numbers_of_numpy_become_those_of_python():
    params = SamplingParams(
        temperature=np.float32(0.5),
        max_tokens=np.int64(3),
        top_k=np.int32(4),
        seed=np.uint64(2**63),
        stop_token_ids=np.array([1, 2]),
        logit_bias={np.int64(3): np.float32(1.5)},
    )
    assert params == SamplingParams(
        temperature=0.5, max_tokens=3, top_k=4, seed=2**63, stop_token_ids=(1, 2), logit_bias={3: 1.5}
    )
    for value in (params.temperature, params.max_tokens, params.top_k, params.seed, *params.stop_token_ids):
        assert type(value) in (int, float)
    assert msgspec.json.decode(msgspec.json.encode(params), type=SamplingParams) == params


def test_values_survive_copies():
    params = SamplingParams(temperature=0.5, seed=7, stop="x")
    assert copy.copy(params) == copy.deepcopy(params) == pickle.loads(pickle.dumps(params)) == params
