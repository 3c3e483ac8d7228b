"""N-gram drafter: propose what followed the longest suffix that occurred before.

It looks in the prompt and in the generated text alike (prompt lookup, suffix decoding), costs a few
dictionary lookups per token and no model pass. Its tokens are chosen without chance, so each has a
point-mass law.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from sonoran.drafting.ngram_index import ROOT, NgramIndex
from sonoran.errors import ConfigError, nearest
from sonoran.sampling.proposals import Speculation

Continuation = Literal["recent", "frequent"]
CONTINUATIONS: tuple[Continuation, ...] = get_args(Continuation)


class NgramDrafter:
    """Drafts for one sequence from its own tokens.

    ``min_n`` and ``max_n`` bound the length of the suffix that must occur earlier. ``recent`` copies what
    followed its latest earlier occurrence, running on into its own copy where the text ends; ``frequent``
    takes, token by token, what followed the longest known suffix most often. ``extend`` and ``truncate``
    follow the sequence at O(max_n) per token. Raises ConfigError.
    """

    def __init__(
        self,
        tokens: Iterable[int] = (),
        *,
        min_n: int = 2,
        max_n: int = 5,
        continuation: Continuation = "recent",
    ) -> None:
        if not 1 <= min_n <= max_n:
            raise ConfigError(f"n-gram sizes need 1 <= min_n <= max_n, got {min_n!r} and {max_n!r}")
        if continuation not in CONTINUATIONS:
            raise ConfigError(
                f"unknown continuation {continuation!r}{nearest(str(continuation), CONTINUATIONS)}"
            )
        self.min_n, self.max_n, self.continuation = min_n, max_n, continuation
        # What follows a suffix of max_n tokens is an n-gram of one token more.
        self._index = NgramIndex(max_n + (continuation == "frequent"))
        self._index.extend(tokens)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens that the drafter knows."""
        return self._index.tokens

    def extend(self, tokens: Iterable[int]) -> None:
        """Append emitted tokens."""
        self._index.extend(tokens)

    def truncate(self, length: int) -> None:
        """Roll back to the first ``length`` tokens. Raises ConfigError when there are fewer."""
        self._index.truncate(length)

    def propose(self, num_tokens: int) -> Speculation:
        """Return up to ``num_tokens`` tokens to follow, none if no suffix of ``min_n`` is known."""
        drafted = self._recent(num_tokens) if self.continuation == "recent" else self._frequent(num_tokens)
        return Speculation.chosen(drafted)

    def _recent(self, num_tokens: int) -> list[int]:
        index = self._index
        for n in range(min(self.max_n, len(index)), self.min_n - 1, -1):
            end = index.previous_end(n)
            if end >= 0:
                known, period = index.tokens, len(index) - 1 - end
                return [known[end + 1 + i % period] for i in range(num_tokens)]
        return []

    def _frequent(self, num_tokens: int) -> list[int]:
        drafted: list[int] = []
        suffixes: Sequence[int] = self._index.suffixes()
        while len(drafted) < num_tokens:
            token = self._most_frequent(suffixes)
            if token < 0:
                break
            drafted.append(token)
            # Suffixes of text and draft together; a longer one that never occurred ends the list.
            grown = []
            for parent in (ROOT, *suffixes[: self.max_n - 1]):
                node = self._index.child(parent, token)
                if node < 0:
                    break
                grown.append(node)
            suffixes = grown
        return drafted

    def _most_frequent(self, suffixes: Sequence[int]) -> int:
        for n in range(min(self.max_n, len(suffixes)), self.min_n - 1, -1):
            token = self._index.best_continuation(suffixes[n - 1])
            if token >= 0:
                return token
        return -1
