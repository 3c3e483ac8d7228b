"""The draft model of a worker: weights and KV memory that all its clients share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sonoran.backends.base import Backend
from sonoran.drafting.vocabulary import DraftVocabulary
from sonoran.draftworker.vocabulary import restrict
from sonoran.kv.memory import KVMemory


@dataclass(slots=True)
class DraftModel:
    """``vocabulary`` is what the draft proposes from, None for everything; ``max_rows`` bounds a pass over prompts."""

    backend: Backend
    kv: KVMemory
    name: str
    fingerprint: str
    vocabulary: DraftVocabulary | None = None
    max_rows: int = 256

    @property
    def context_length(self) -> int:
        """Tokens of a sequence that the draft can see."""
        return min(self.backend.config.max_position, self.kv.capacity)

    def see(self, tokens: Sequence[int]) -> None:
        """Let the draft propose the tokens of a text that it drafts for."""
        if self.vocabulary is not None and self.vocabulary.add(tokens):
            restrict(self.backend, self.vocabulary)

    def close(self) -> None:
        """Free the weights."""
        self.backend.close()
