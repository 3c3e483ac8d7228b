"""Draft vocabulary: which output rows the draft computes, so that a pass reads less; and tokens that it lacks.

Low token ids are frequent ones, but a text's own names and words are often rare. So the vocabulary is the ids below a
bound, the special tokens, and whatever occurs in the sequences that are served. Only speed depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from sonoran.backends.base import Backend, BackendFacts, Movable, Rows
from sonoran.config import DEFAULT_DRAFT_VOCAB
from sonoran.errors import ConfigError
from sonoran.models.config import ModelConfig
from sonoran.types import FloatArray, IntArray

_UNIT = 16  # ids that a backend computes together


class DraftVocabulary:
    """A growing set of token ids, in units of 16. ``limit`` bounds the units that texts may add."""

    def __init__(
        self,
        vocab_size: int,
        first: int,
        special: Iterable[int] = (),
        limit: int = 1024,
        restrict: Callable[[IntArray], None] = lambda ids: None,
    ) -> None:
        """Start with the ids below ``first`` and the special tokens. Raises ConfigError for sizes below 1.

        ``restrict`` is called with one id of each unit now, and whenever the set has grown.
        """
        if vocab_size < 1 or first < 1:
            raise ConfigError(f"a draft vocabulary needs at least one token, got {first} of {vocab_size}")
        self.vocab_size = vocab_size
        self._chosen = np.zeros(-(-vocab_size // _UNIT), bool)
        self._chosen[: -(-min(first, vocab_size) // _UNIT)] = True
        for token in special:
            if 0 <= token < vocab_size:
                self._chosen[token // _UNIT] = True
        self._room = limit
        self._restrict = restrict
        restrict(self.ids())

    @property
    def width(self) -> int:
        """One more than the largest id."""
        return int(min(self.vocab_size, (np.flatnonzero(self._chosen)[-1] + 1) * _UNIT))

    def add(self, tokens: Iterable[int]) -> bool:
        """Add the tokens of a text while there is room; return whether anything is new."""
        ids = np.fromiter(tokens, np.int64)
        units = np.unique(ids[(ids >= 0) & (ids < self.vocab_size)] // _UNIT)
        fresh = units[~self._chosen[units]][: self._room]
        self._chosen[fresh] = True
        self._room -= len(fresh)
        if len(fresh):
            self._restrict(self.ids())
        return len(fresh) > 0

    def ids(self) -> IntArray:
        """Return one id of each unit, ascending."""
        return (np.flatnonzero(self._chosen) * _UNIT).astype(np.int32)


def draft_vocabulary(
    backend: Backend, draft_vocab: int | None, special_ids: Iterable[int]
) -> DraftVocabulary | None:
    """Restrict a draft to ``draft_vocab`` ids (None: the default; 0: no restriction) and its special tokens."""
    first = DEFAULT_DRAFT_VOCAB if draft_vocab is None else draft_vocab
    size = backend.config.vocab_size
    if first == 0 or first >= size:
        return None
    return DraftVocabulary(size, first, special_ids, restrict=backend.restrict_output)


class KnownTokens:
    """A draft that reads ``stand_in`` for every id from ``count`` on: tokens of its target that it has not."""

    def __init__(self, backend: Backend, count: int, stand_in: int) -> None:
        self._backend, self._count, self._stand_in = backend, min(count, backend.config.vocab_size), stand_in

    @property
    def config(self) -> ModelConfig:
        """The model's."""
        return self._backend.config

    @property
    def block_size(self) -> int:
        """KV slots per block."""
        return self._backend.block_size

    @property
    def num_blocks(self) -> int:
        """Blocks of KV memory."""
        return self._backend.num_blocks

    @property
    def facts(self) -> BackendFacts:
        """What it runs on and holds."""
        return self._backend.facts

    def forward(self, rows: Rows) -> FloatArray:
        """Run the rows, unknown tokens replaced."""
        if rows.tokens.size and int(rows.tokens.max()) >= self._count:
            known = np.where(rows.tokens < self._count, rows.tokens, self._stand_in)
            rows = replace(rows, tokens=known.astype(np.int32))
        return self._backend.forward(rows)

    def restrict_output(self, token_ids: IntArray) -> None:
        """Hear that only these logits are wanted from now on."""
        self._backend.restrict_output(token_ids)

    def copy_block(self, source: int, destination: int) -> None:
        """Copy the keys and values of one block."""
        self._backend.copy_block(source, destination)

    def close(self) -> None:
        """Free everything; calling twice is harmless."""
        self._backend.close()

    @property
    def movable(self) -> Movable | None:
        """The draft, where it can change its cores."""
        return movable(self._backend)


def movable(backend: Backend) -> Movable | None:
    """Return what changes the cores of a backend, None where nothing does."""
    if isinstance(backend, KnownTokens):
        return backend.movable
    return backend if isinstance(backend, Movable) else None
