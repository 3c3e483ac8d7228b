"""N-gram index: propose what followed the longest suffix of a text that occurred in it before.

It looks in the prompt and in the generated text alike (prompt lookup), costs a few dictionary lookups per token and no
model pass.
"""

from __future__ import annotations

from collections.abc import Iterable

from sonoran.config import check_length
from sonoran.errors import ConfigError
from sonoran.sampling.proposals import Speculation

_ROOT = 0


class NgramIndex:
    """All n-grams of one text, of up to ``max_n`` tokens. Appending a token costs O(max_n), whatever the length.

    The n-gram that ends at a token is the child, by that token, of the (n - 1)-gram that ends before it; so a lookup
    never compares token lists, and different n-grams never collide. A suffix of at least ``min_n`` tokens must have
    occurred before for anything to be proposed. Raises ConfigError.
    """

    def __init__(self, tokens: Iterable[int] = (), *, min_n: int = 2, max_n: int = 5) -> None:
        if not 1 <= min_n <= max_n:
            raise ConfigError(f"n-gram sizes need 1 <= min_n <= max_n, got {min_n!r} and {max_n!r}")
        self.min_n, self.max_n = min_n, max_n
        self.tokens: list[int] = []
        self._children: dict[tuple[int, int], int] = {}
        self._ends = [-1]  # by node: the last position at which its n-gram ends
        self._suffixes: list[int] = []  # nodes of the last 1, 2, ... tokens
        self._previous_ends: list[int] = []  # where these ended an earlier time, -1 if never
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        for token in tokens:
            self._append(int(token))

    def propose(self, num_tokens: int) -> Speculation:
        """Return ``num_tokens`` tokens to follow, none if no suffix is known.

        They are copied from what followed the suffix's latest earlier occurrence, running on into its own copy where
        the text ends. Chosen without chance, each has a point mass. Raises ConfigError for more tokens than a speculation
        has.
        """
        check_length(num_tokens)
        for n in range(len(self._suffixes), self.min_n - 1, -1):
            end = self._previous_ends[n - 1]
            if end >= 0:
                period = len(self.tokens) - 1 - end
                return Speculation.chosen([self.tokens[end + 1 + i % period] for i in range(num_tokens)])
        return Speculation.chosen([])

    def _append(self, token: int) -> None:
        position = len(self.tokens)
        parents = (_ROOT, *self._suffixes[: self.max_n - 1])
        self._suffixes, self._previous_ends = [], []
        for parent in parents:
            node = self._children.setdefault((parent, token), len(self._ends))
            if node == len(self._ends):
                self._ends.append(-1)
            self._suffixes.append(node)
            self._previous_ends.append(self._ends[node])
            self._ends[node] = position
        self.tokens.append(token)
