"""Configurations: what is accepted, and how what is not is refused."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from sonoran.config import (
    EngineConfig,
    Panel,
    SpeculationSettings,
    SpeculativeConfig,
    WorkerConfig,
    from_keywords,
    parse_cores,
    speculation_of,
)
from sonoran.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({"model": "draft.gguf"}, "sd"),
        ({"model": "ngram"}, "ngram"),
        ({"method": "ngram", "prompt_lookup_max": 4}, "ngram"),
        ({"method": "draft_model", "model": "auto", "num_speculative_tokens": 7}, "sd"),
        ({"method": "sd", "model": "auto"}, "sd"),
        ({"method": None, "model": "x", "cores": "0,2-3", "quantize": "int4"}, "sd"),
    ],
)
def test_the_method_follows_from_the_model(given: dict[str, Any], method: str) -> None:
    assert SpeculativeConfig.from_mapping(given).method == method


def test_draft_cores_are_cores_of_the_draft() -> None:
    config = SpeculativeConfig.from_mapping({"method": "ssd", "model": "x", "draft_cores": "1,3"})
    assert config.cores == (1, 3)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "needs a method or a model"),
        ({"num_speculative_token": 3}, "did you mean 'num_speculative_tokens'"),
        ({"method": "ngrams"}, "method 'ngrams' is unknown; did you mean 'ngram'"),
        ({"method": "draft_model"}, "needs a model"),
        ({"method": "draft-model"}, "did you mean 'draft_model'"),
        (
            {"method": "ngram", "model": "x"},
            "'model' belongs to method 'sd', 'ssd', 'auto', not to 'ngram'",
        ),
        ({"model": "x", "prompt_lookup_max": 3}, "'prompt_lookup_max' belongs to method 'ngram'"),
        ({"model": "x", "num_speculative_tokens": -1}, "from 0 to 64, got -1"),
        ({"model": "x", "num_speculative_tokens": 65}, "from 0 to 64, got 65"),
        ({"model": "x", "num_speculative_tokens": True}, "got True"),
        ({"model": "x", "verification": "coupling"}, "did you mean 'coupled'"),
        ({"model": "x", "quantize": "int5"}, "quantize 'int5' is unknown"),
        (
            {"model": "x", "draft_vocab": -1},
            "draft_vocab must be a whole number from 0 to 2147483647, got -1",
        ),
        ({"method": "sd"}, "method 'sd' needs a model"),
        ({"method": "ssd", "model": "x", "cores": "0", "draft_cores": "1"}, "they are the same"),
        ({"method": "auto", "model": "x", "cores": "0"}, "'cores' belongs to method"),
        ({"method": "ssd"}, "needs a model, or the draft_address"),
        ({"method": "ssd", "model": "x", "draft_address": "tcp://127.0.0.1:5757"}, "needs a model, or the"),
        ({"method": "ssd", "model": "x", "draft_key_file": "k"}, "needs a draft_address"),
        ({"method": "ssd", "draft_address": "tcp://127.0.0.1:5757", "cores": "1"}, "cores is decided where"),
        ({"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 3}, "exceeds prompt_lookup_max"),
        ({"model": "x", "cores": "a"}, "cores must look like"),
        ({"model": "x", "least_chance": "0.5"}, r"least_chance must lie in \[0, 1\], got '0.5'"),
        ({"model": "x", "least_chance": 1.5}, r"least_chance must lie in \[0, 1\], got 1.5"),
        ({"method": "ngram", "least_chance": 0.5}, "belongs to method 'sd', 'ssd'"),
    ],
)
def test_speculation_that_makes_no_sense_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SpeculativeConfig.from_mapping(given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"max_model_length": 1}, "unknown engine key 'max_model_length'; did you mean 'max_model_len'"),
        ({"max_model_len": 1}, "at least 2"),
        ({"max_num_seqs": 0}, "max_num_seqs must be a whole number from 1 to 1024, got 0"),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 8}, "must exceed max_num_seqs"),
        ({"kv_cache_bytes": 1 << 20, "num_kv_blocks": 9}, "not both"),
        ({"block_size": 1.5}, "got 1.5"),
        ({"seed": -1}, "seed must be"),
        ({"quantize": "int44"}, "did you mean 'int4'"),
        ({"max_model_len": 999999999999}, "max_model_len must be a whole number from 1 to 16777216, got 9"),
        ({"max_model_len": 10**5000}, "got a number of thousands of digits"),
        ({"kv_cache_bytes": 2**60}, "kv_cache_bytes must be .* to 70368744177664, got 1152921504606846976"),
        ({"num_kv_blocks": 2**31}, "num_kv_blocks must be .* to 16777216, got 2147483648"),
        ({"block_size": 2**31}, "block_size must be .* to 4096"),
        ({"threads": 2**31}, "threads must be .* to 1024"),
        ({"max_num_seqs": 2**31}, "max_num_seqs must be .* to 1024"),
        ({"max_num_batched_tokens": 2**31}, "max_num_batched_tokens must be .* to 65536"),
        ({"cores": "0-99999999999"}, "numbers from 0 to 8191, got '0-99999999999'"),
        ({"cores": "99999999999"}, "numbers from 0 to 8191"),
        ({"cores": [0.5]}, "cores must look like"),
        ({"seed": 2**70}, "seed must be"),
    ],
)
def test_engines_that_make_no_sense_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        from_keywords(EngineConfig, "engine", given)


SSD: dict[str, Any] = {"method": "ssd", "model": "x"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"fan_out": "measurd"}, "fan_out 'measurd' is unknown; did you mean 'measured'"),
        ({"budget": "zillion"}, "budget must be a whole number from 1 to 256 or 'auto', got 'zillion'"),
        ({"budget": 0}, "got 0"),
        ({"budget": True}, "got True"),
        ({"backup": "no"}, "backup 'no' is unknown"),
        ({"saguaro_c": 7.0}, r"saguaro_c must lie in \[0, 1\], got 7.0"),
        ({"top_up": "yes"}, "top_up 'yes' is unknown"),
        ({"fan_out": "explicit"}, "needs fan_out_primary"),
        ({"fan_out_primary": [1, 2]}, "the other rules take none"),
        ({"fan_out": "explicit", "fan_out_primary": []}, "got an empty one"),
        ({"fan_out": "explicit", "fan_out_primary": [1, -2]}, "got -2"),
        ({"fan_out": "explicit", "fan_out_primary": "12"}, "got '12'"),
        ({"fan_out_backup": [1]}, "needs fan_out_primary beside it"),
    ],
)
def test_a_configuration_is_checked_when_it_is_made(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SpeculativeConfig(**SSD, **given)
    with pytest.raises(ConfigError, match=text):
        SpeculativeConfig.from_mapping({**SSD, **given})
    with pytest.raises(ConfigError, match=text):
        SpeculationSettings(**given)


def test_a_worker_hears_of_speculation_as_it_was_configured() -> None:
    config = SpeculativeConfig(**SSD, fan_out="explicit", fan_out_primary=[2, 1], saguaro_c=0.5, top_up=False)
    settings = config.settings()
    assert type(settings) is SpeculationSettings
    for name in (f.name for f in dataclasses.fields(SpeculationSettings)):
        assert getattr(settings, name) == getattr(config, name)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(settings), type=SpeculationSettings) == settings


def test_every_option_says_what_it_is() -> None:
    for kind in (EngineConfig, SpeculativeConfig):
        for f in dataclasses.fields(kind):
            assert f.name == "method" or (f.metadata["panel"] in get_args(Panel) and f.metadata["help"])


def test_a_worker_configuration_survives_json() -> None:
    config = WorkerConfig(model="m.gguf", threads=1, cores="1,3", quantize="int4", draft_vocab=9, max_rows=8)  # type: ignore[arg-type]
    assert config.cores == (1, 3)
    assert msgspec.json.decode(msgspec.json.encode(config), type=WorkerConfig) == config


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "needs a model"),
        ({"model": ""}, "model must be"),
        ({"model": "m", "threads": 0}, "threads must be .*got 0"),
        ({"model": "m", "num_kv_blocks": None}, "num_kv_blocks"),
        ({"model": "m", "max_rows": True}, "max_rows"),
        ({"model": "m", "quantize": "int2"}, "quantize 'int2' is unknown"),
        ({"model": "m", "cores": "a"}, "cores must look like"),
    ],
)
def test_workers_that_make_no_sense_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        WorkerConfig(**given)


def test_whole_numbers_may_be_numpys() -> None:
    config = EngineConfig(max_model_len=np.int64(64), cores=np.array([1, 0]), seed=np.uint32(3))  # type: ignore[arg-type]
    assert (config.max_model_len, config.cores, config.seed) == (64, (1, 0), 3)
    assert type(config.max_model_len) is int
    explicit = SpeculationSettings(fan_out="explicit", fan_out_primary=np.array([2, 1]))  # type: ignore[arg-type]
    assert explicit.fan_out_primary == (2, 1)
    assert msgspec.json.encode(explicit)


@pytest.mark.parametrize("given", ["ssd", 5, ["ssd"], {"method": ["ssd"]}, {"method": "ssd", "model": 5}])
def test_speculation_of_the_wrong_type_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"speculative_config must be|method .* is unknown|model must be"):
        SpeculativeConfig.from_mapping(given)


@pytest.mark.parametrize("given", [{"saguaro_c": "x"}, {"fan_out": "explicit", "fan_out_primary": ["x"]}])
def test_numbers_that_are_none_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="got 'x'"):
        SpeculativeConfig.from_mapping({"method": "ssd", "model": "m", **given})


def test_cores_are_numbers_and_spans() -> None:
    assert parse_cores("0,2-5") == (0, 2, 3, 4, 5)
    assert parse_cores([1, 0]) == (1, 0)
    assert parse_cores(None) is None
    assert EngineConfig(cores="3-4").cores == (3, 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("cores", ["", "0-", "5-3", "0,0", "1,,2", [-1], 3])
def test_cores_that_make_no_sense_are_refused(cores: Any) -> None:
    with pytest.raises(ConfigError, match="cores must"):
        parse_cores(cores)


def test_nothing_asked_for_is_the_fastest_mode_and_false_is_ar() -> None:
    assert speculation_of(None) == SpeculativeConfig("auto", num_speculative_tokens=8)
    assert speculation_of(False) is None and speculation_of({"method": "ar"}) is None
    assert speculation_of({"model": "x"}) == SpeculativeConfig("sd", model="x")
    with pytest.raises(ConfigError, match="must be a dictionary"):
        speculation_of(True)
    with pytest.raises(ConfigError, match="unknown speculative_config"):
        speculation_of({"method": "ar", "num_speculative_tokens": 2})
