"""A toy model that implements the semantics of ``Rows`` honestly, by hashing what a row can see.

It has two layers. Keys of the first hold (token, position); keys of the second hold a hash of everything that
the row saw in the first, hence of the whole prefix. Logits are a fixed function of the last two tokens plus a
smaller one of everything seen in the second layer. A wrong slot, block table, length, position or parent of a
cached block changes the logits. Two toys with one ``seed`` and different ``salt`` agree most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sonoran.backends.base import Rows
from sonoran.errors import ConfigError
from sonoran.models.config import ModelConfig
from sonoran.types import FloatArray, IntArray
from tests.oracles.row_contract import check_rows

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64, element by element."""
    x = np.asarray(x, np.uint64)
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def toy_config(vocab_size: int = 64, max_position: int = 512) -> ModelConfig:
    return ModelConfig(
        architecture="llama",
        vocab_size=vocab_size,
        hidden_size=8,
        intermediate_size=8,
        num_layers=2,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        max_position=max_position,
        rope_theta=10000.0,
        norm_epsilon=1e-5,
        rope_interleaved=False,
    )


class ToyBackend:
    """Implements the ``Backend`` protocol; counts its passes and rows for tests."""

    def __init__(
        self,
        *,
        vocab_size: int = 64,
        max_position: int = 512,
        num_blocks: int = 64,
        block_size: int = 4,
        max_rows: int = 512,
        seed: int = 1,
        salt: int = 0,
        noise: float = 1.5,
        scale: float = 6.0,
    ) -> None:
        self.config = toy_config(vocab_size, max_position)
        self.num_blocks, self.block_size, self.max_rows = num_blocks, block_size, max_rows
        self._seed, self._salt = np.uint64(seed * 7919), np.uint64(salt * 104729 + 13)
        self._scale, self._noise = scale, noise
        slots = num_blocks * block_size
        poison = mix(np.arange(1, 3 * slots + 1, dtype=np.uint64))
        self._token = poison[:slots].copy()
        self._position = poison[slots : 2 * slots].copy()
        self._deep = poison[2 * slots :].copy()
        self._ids = mix(np.arange(vocab_size, dtype=np.uint64) * _GOLDEN)
        self.passes = 0
        self.rows = 0
        self.row_counts: list[int] = []
        self.copies = 0
        self.closed = False
        self.before_forward: Callable[[], None] = lambda: None
        self._barred = np.zeros(vocab_size, bool)

    def forward(self, rows: Rows) -> FloatArray:
        self.before_forward()
        if len(rows) > self.max_rows:
            raise ConfigError(f"{len(rows)} rows, at most {self.max_rows}")
        check_rows(rows, self.config.vocab_size, self.num_blocks, self.block_size)
        assert not len(rows) or rows.positions.max() < self.config.max_position, "beyond the context"
        self.passes += 1
        self.rows += len(rows)
        self.row_counts.append(len(rows))
        seen = [self._visible(rows, i) for i in range(len(rows))]
        with np.errstate(over="ignore"):
            self._token[rows.slots] = rows.tokens.astype(np.uint64)
            self._position[rows.slots] = rows.positions.astype(np.uint64)
            shallow = mix(self._token * _GOLDEN + self._position * np.uint64(31) + self._seed)
            self._deep[rows.slots] = [mix(shallow[slots].sum(dtype=np.uint64)) for slots in seen]
            deep = mix(self._deep + _GOLDEN)
            wanted = np.flatnonzero(rows.wants_logits)
            logits = np.empty((len(wanted), self.config.vocab_size), np.float32)
            for out, i in enumerate(wanted):
                everything = mix(deep[seen[i]].sum(dtype=np.uint64) + self._salt)
                logits[out] = self._scale * self._uniform(self._last_two(seen[i], int(rows.positions[i])))
                logits[out] += self._noise * self._uniform(everything)
        logits[:, self._barred] = -np.inf
        return logits

    def restrict_output(self, token_ids: Sequence[int]) -> None:
        self._barred[:] = True
        self._barred[list(token_ids)] = False

    def copy_block(self, source: int, destination: int) -> None:
        size = self.block_size
        for store in (self._token, self._position, self._deep):
            store[destination * size : (destination + 1) * size] = store[source * size : (source + 1) * size]
        self.copies += 1

    def close(self) -> None:
        self.closed = True

    def _visible(self, rows: Rows, i: int) -> IntArray:
        positions = np.arange(rows.trunk_lengths[i])
        blocks = rows.block_tables[rows.sequences[i], positions // self.block_size]
        extra = rows.extra_slots[rows.extra_offsets[i] : rows.extra_offsets[i + 1]]
        return np.concatenate([blocks * self.block_size + positions % self.block_size, extra])

    def _last_two(self, slots: IntArray, position: int) -> np.ndarray:
        state = self._seed
        for wanted in (position - 1, position):
            here = slots[self._position[slots] == np.uint64(max(wanted, 0))]
            state = mix(state * np.uint64(3) + self._token[here].sum(dtype=np.uint64))
        return state

    def _uniform(self, state: np.ndarray) -> np.ndarray:
        return mix(self._ids + state).astype(np.float64) / 2.0**64
