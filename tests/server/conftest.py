from __future__ import annotations

from collections.abc import Iterator

import pytest

from sonoran.llm import LLM
from tests.server.running import Running, running, tiny_pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    target, draft = tiny_pair(tmp_path_factory.mktemp("models"))
    return str(target), str(draft)


@pytest.fixture(scope="module")
def server(pair: tuple[str, str]) -> Iterator[Running]:
    """A server in mode SD with the engine's usual limits."""
    target, draft = pair
    speculative = {"method": "sd", "model": draft, "num_speculative_tokens": 3, "least_chance": 0.0}
    with LLM(target, speculative_config=speculative, max_model_len=128, threads=1) as llm:
        with running(llm) as server:
            yield server
        llm.check_invariants()
