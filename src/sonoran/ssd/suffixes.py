"""Suffix index: what followed the longest end of a text that occurred in it before.

It looks in the prompt and in the generated text alike (prompt lookup), costs a dictionary lookup per token and no
model pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sonoran.config import check_length
from sonoran.errors import ConfigError
from sonoran.sampling.proposals import Speculation

MAX_VISITED = 64
"""Occurrences of the last tokens that a lookup compares, the latest first: its cost has a bound whatever the text."""

LONGEST_MATCH = 64
"""Tokens beyond which a longer match tells nothing more."""


@dataclass(frozen=True, slots=True)
class Match:
    """The last ``length`` tokens occurred before, and what followed begins at position ``start``."""

    start: int
    length: int


class SuffixIndex:
    """One text, and where each run of ``min_n`` tokens ended the time before. Memory is one entry per token.

    Occurrences are chained from the latest backwards and compared with the text itself, so that different runs never
    collide. A match has at least ``min_n`` tokens; of more than ``max_n`` only so many are looked at. Raises ConfigError.
    """

    def __init__(self, tokens: Iterable[int] = (), *, min_n: int = 2, max_n: int = LONGEST_MATCH) -> None:
        if not 1 <= min_n <= max_n:
            raise ConfigError(f"n-gram sizes need 1 <= min_n <= max_n, got {min_n!r} and {max_n!r}")
        self.min_n, self.max_n = min_n, max_n
        self.tokens: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}  # by run: where it ended last
        self._earlier: list[
            int
        ] = []  # by position: where the run that ends there ended the time before, -1 never
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        for token in tokens:
            position = len(self.tokens)
            self.tokens.append(int(token))
            if position + 1 < self.min_n:
                self._earlier.append(-1)
                continue
            run = tuple(self.tokens[-self.min_n :])
            self._earlier.append(self._latest.get(run, -1))
            self._latest[run] = position

    def find(self) -> Match | None:
        """Return the longest match with the end of the text, the latest of equals; None without any.

        It is sought among the latest ``MAX_VISITED`` occurrences of the last ``min_n`` tokens.
        """
        last = len(self.tokens) - 1
        at = self._earlier[last] if last >= 0 else -1
        best, length = -1, 0
        for _ in range(MAX_VISITED):
            if at < 0 or length >= self.max_n:
                break
            # Only what also agrees one token further back than the best can be longer.
            if not length or (at >= length and self.tokens[at - length] == self.tokens[last - length]):
                found = self._common(at, last)
                if found > length:
                    best, length = at, found
            at = self._earlier[at]
        return Match(best + 1, length) if length else None

    def copy(self, start: int, num_tokens: int) -> Speculation:
        """Return ``num_tokens`` tokens from position ``start`` on, running on into the copy where the text ends.

        Chosen without chance, each has a point mass. Raises ConfigError for more tokens than a speculation has.
        """
        check_length(num_tokens)
        period = len(self.tokens) - start
        return Speculation.chosen([self.tokens[start + i % period] for i in range(num_tokens)])

    def propose(self, num_tokens: int) -> Speculation:
        """Return ``num_tokens`` tokens that followed the longest match, none without one. Raises what ``copy`` raises."""
        check_length(num_tokens)
        match = self.find()
        return self.copy(match.start, num_tokens) if match is not None else Speculation.chosen([])

    def _common(self, one: int, other: int) -> int:
        """Return how many tokens that end at two positions, the first one smaller, are the same; at most ``max_n``."""
        tokens, length, limit = self.tokens, 0, min(self.max_n, one + 1)
        while length < limit and tokens[one - length] == tokens[other - length]:
            length += 1
        return length
