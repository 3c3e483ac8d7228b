"""N-grams of a sequence's own text behind the engine's protocol: no model, no memory but the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sonoran.engine.drafter import DraftRequest
from sonoran.engine.trace import Span
from sonoran.sampling.proposals import Speculation
from sonoran.ssd.suffixes import SuffixIndex


class NgramDrafter:
    """Prompt lookup and suffix matching for many sequences; each has an index that grows with its text."""

    def __init__(self, *, min_n: int = 2, max_n: int = 5) -> None:
        self._min_n, self._max_n = min_n, max_n
        self._indexes: dict[int, SuffixIndex] = {}
        self._proposals = 0
        self._empty = 0

    @property
    def max_context(self) -> int | None:
        """Return None: n-grams see everything."""
        return None

    def admit(self, request: DraftRequest) -> None:
        """Do nothing: a prompt is indexed when the first proposal is wanted."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Speculation]:
        """Return what followed the longest suffix that occurred before, or nothing."""
        return [self._propose(request) for request in requests]

    def release(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self._indexes.pop(sequence_id, None)

    def reset(self) -> None:
        """Forget every sequence."""
        self._indexes.clear()

    def check_invariants(self) -> None:
        """Raise RuntimeError when sequences are left that were never released."""
        if self._indexes:
            raise RuntimeError(f"the n-gram drafter still holds sequences {sorted(self._indexes)}")

    def stats(self, ask_worker: bool = True) -> dict[str, Any]:
        """Return how often something was looked up, and how often nothing was found."""
        return {"num_proposals": self._proposals, "num_empty": self._empty}

    def record(self, limit: int) -> list[Span] | None:
        """Return None: there is no worker."""
        return None

    def close(self) -> None:
        """Forget everything."""
        self.reset()

    def _propose(self, request: DraftRequest) -> Speculation:
        index = self._indexes.get(request.sequence_id)
        if index is None:
            index = SuffixIndex(min_n=self._min_n, max_n=self._max_n)
            self._indexes[request.sequence_id] = index
        index.extend(request.tokens[len(index) :])
        speculation = index.propose(request.wanted)
        self._proposals += 1
        self._empty += not speculation.tokens
        return speculation
