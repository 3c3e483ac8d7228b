"""The draft vocabulary in force in a backend."""

from __future__ import annotations

from collections.abc import Iterable

from sonoran.backends.base import Backend
from sonoran.backends.native import NativeBackend
from sonoran.drafting.vocabulary import DraftVocabulary

DEFAULT_DRAFT_VOCAB = 32768
"""Ids below which the draft proposes anything; 0 stands for the whole vocabulary."""


def restrict(backend: Backend, vocabulary: DraftVocabulary) -> None:
    """Have the backend compute only what the draft proposes from. Does nothing for backends that cannot."""
    if isinstance(backend, NativeBackend):
        backend.restrict_output(vocabulary.ids())


def make_vocabulary(
    backend: NativeBackend, draft_vocab: int | None, special_ids: Iterable[int]
) -> DraftVocabulary | None:
    """Restrict a draft to ``draft_vocab`` ids (None: the default; 0: no restriction) and its special tokens."""
    first = DEFAULT_DRAFT_VOCAB if draft_vocab is None else draft_vocab
    size = backend.config.vocab_size
    if first == 0 or first >= size:
        return None
    vocabulary = DraftVocabulary(size, first, special_ids)
    restrict(backend, vocabulary)
    return vocabulary
