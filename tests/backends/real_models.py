"""The default models and SmolLM2 for tests, and what is measured on them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest

from sonoran.backends.base import Backend, Rows
from sonoran.errors import DownloadError
from sonoran.models.source import ModelFile, open_model, resolve_model

BLOCK_SIZE = 16


@lru_cache
def real_model(name: str) -> ModelFile:
    """Open a model of the registry, pulled if need be; skip the test where that is impossible."""
    try:
        return open_model(resolve_model(name))
    except DownloadError as error:
        pytest.skip(f"{name} is not in the cache and cannot be pulled: {error}")


def run(backend: Backend, ids: Sequence[int], start: int = 0, wants_from: int = 0) -> np.ndarray:
    """Logits at the positions from ``wants_from`` on, after a pass over the tokens from ``start`` on."""
    positions = np.arange(start, len(ids))
    table = np.arange(backend.num_blocks, dtype=np.int32)[None]
    return backend.forward(
        Rows.trunk(
            np.array(ids[start:], np.int32),
            positions,
            np.zeros(len(positions)),
            table,
            BLOCK_SIZE,
            positions >= wants_from,
        )
    )


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return result


def perplexity(log_probs: np.ndarray, ids: Sequence[int]) -> float:
    """Of the tokens after the first, from log-probabilities ``[len(ids) - 1, vocab_size]``."""
    return float(np.exp(-log_probs[np.arange(len(ids) - 1), ids[1:]].mean()))


def greedy(backend: Backend, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    start = 0
    for _ in range(count):
        logits = run(backend, ids, start, len(ids) - 1)
        start = len(ids)
        ids.append(int(logits[0].argmax()))
    return ids[len(prompt) :]
