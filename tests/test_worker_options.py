"""Options of a worker travel as JSON and are checked when they are made."""

from __future__ import annotations

import json

import pytest

from sonoran.config import WorkerOptions
from sonoran.errors import ConfigError


def test_options_survive_json() -> None:
    options = WorkerOptions("m.gguf", threads=1, cores="1,3", quantize="int4", draft_vocab=100, max_rows=8)  # type: ignore[arg-type]
    assert options.cores == (1, 3)
    assert WorkerOptions.from_mapping(json.loads(json.dumps(options.to_mapping()))) == options


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "m", "thread": 1}, "did you mean 'threads'"),
        ({}, "needs a model"),
        ({"model": ""}, "model must be"),
        ({"model": "m", "threads": 0}, "threads must be .*got 0"),
        ({"model": "m", "num_kv_blocks": None}, "num_kv_blocks"),
        ({"model": "m", "max_rows": True}, "max_rows"),
        ({"model": "m", "quantize": "int2"}, "unknown quantize 'int2'"),
        ({"model": "m", "cores": "a"}, "cores must look like"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkerOptions.from_mapping(values)
