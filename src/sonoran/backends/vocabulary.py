"""Draft vocabulary: which output rows the draft computes, so that a pass reads less.

Low token ids are frequent ones, but a text's own names and words are often rare. So the vocabulary is the ids below a
bound, the special tokens, and whatever occurs in the sequences that are served. Only speed depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from sonoran.backends.base import Backend
from sonoran.config import DEFAULT_DRAFT_VOCAB
from sonoran.errors import ConfigError
from sonoran.types import IntArray

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
