"""The draft model of a worker: weights and KV memory that all its clients share."""

from __future__ import annotations

from dataclasses import dataclass

from sonoran.backends.base import Backend
from sonoran.kv.memory import KVMemory


@dataclass(slots=True)
class DraftModel:
    """``width`` leading columns of the logits are looked at; ``max_rows`` bounds a pass over prompts."""

    backend: Backend
    kv: KVMemory
    name: str
    fingerprint: str
    width: int
    max_rows: int = 256

    @property
    def context_length(self) -> int:
        """Tokens of a sequence that the draft can see."""
        return min(self.backend.config.max_position, self.kv.capacity)

    def close(self) -> None:
        """Free the weights."""
        self.backend.close()
