"""From options to a speculative configuration."""

from __future__ import annotations

from typing import Any

import pytest

from sonoran.cli.speculation import speculative_config
from sonoran.config import SpeculativeConfig


@pytest.mark.parametrize(
    ("mode", "draft", "config"),
    [
        (None, "none", None),
        ("ar", "none", None),
        (None, "ngram", {"method": "ngram", "num_speculative_tokens": 4}),
        ("ngram", "none", {"method": "ngram", "num_speculative_tokens": 4}),
        ("sd", "none", {"method": "sd", "num_speculative_tokens": 4, "model": "auto"}),
        ("ssd", "x.gguf", {"method": "ssd", "num_speculative_tokens": 4, "model": "x.gguf"}),
        ("auto", "none", {"method": "auto", "model": "auto"}),
    ],
)
def test_modes(mode: str | None, draft: str, config: dict[str, Any] | None) -> None:
    assert speculative_config(mode, draft) == config
    if config is not None:
        SpeculativeConfig.from_mapping(config)


def test_options_of_ssd() -> None:
    found = speculative_config(
        "ssd", "none", 3, draft_options={"cores": "1", "vocab": 500, "least_chance": 0.3},
        ssd_options={"fan_out": "2, 1,1,4", "backup": "ngram", "saguaro_c": 0.5, "budget": None},
    )  # fmt: skip
    assert found == {
        "method": "ssd", "num_speculative_tokens": 3, "model": "auto", "cores": "1", "draft_vocab": 500,
        "least_chance": 0.3,
        "fan_out": "explicit", "fan_out_primary": (2, 1, 1, 4), "backup": "ngram", "saguaro_c": 0.5,
    }  # fmt: skip
    found = speculative_config("ssd", "none", ssd_options={"fan_out": "geometric", "budget": "12"})
    assert found is not None
    assert (found["fan_out"], found["budget"]) == ("geometric", 12)


def test_a_worker_that_runs_already_has_its_own_model() -> None:
    options = {"address": "tcp://127.0.0.1:5757", "key_file": "client.key"}
    found = speculative_config("ssd", "none", ssd_options=options)
    assert found == {
        "method": "ssd", "num_speculative_tokens": 4, "draft_address": "tcp://127.0.0.1:5757",
        "draft_key_file": "client.key",
    }  # fmt: skip
