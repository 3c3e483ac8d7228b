"""Index of all n-grams of a growing token list, with exact rollback: a trie with a node for each n-gram."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sonoran.errors import ConfigError

ROOT = 0


class _Step(NamedTuple):
    """What appending one token changed, per length n = 1, 2, ...; enough to undo it."""

    nodes: tuple[int, ...]  # the n-gram that ends here
    previous_ends: tuple[int, ...]  # where it ended before, -1 if never
    previous_best: tuple[int, ...]  # the parent's most frequent continuation before


class NgramIndex:
    """All n-grams up to ``depth`` tokens. Appending and removing a token cost O(depth), whatever the length.

    The n-gram that ends at a token is the child, by that token, of the (n-1)-gram that ends before it; so a
    lookup never compares token lists, and different n-grams never collide. Nodes are created and removed in
    stack order.
    """

    def __init__(self, depth: int) -> None:
        if depth < 1:
            raise ConfigError(f"n-grams need at least 1 token, got {depth!r}; nearest valid value: 1")
        self.depth = depth
        self.tokens: list[int] = []
        self._children: dict[tuple[int, int], int] = {}
        self._keys: list[tuple[int, int]] = [(-1, -1)]  # per node, so that removal finds its entry
        self._counts = [0]
        self._ends = [-1]  # last position at which the node's n-gram ends
        self._best = [
            -1
        ]  # the child that occurred most often, of equals the one that occurred last; -1: none
        self._steps: list[_Step] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def suffixes(self) -> tuple[int, ...]:
        """Return the nodes of the last 1, 2, ... tokens, at most ``depth`` of them."""
        return self._steps[-1].nodes if self._steps else ()

    def previous_end(self, length: int) -> int:
        """Return the position at which the last ``length`` tokens ended an earlier time; -1 if never."""
        return self._steps[-1].previous_ends[length - 1]

    def child(self, node: int, token: int) -> int:
        """Return the node of the n-gram followed by ``token``, -1 if that never occurred."""
        return self._children.get((node, token), -1)

    def best_continuation(self, node: int) -> int:
        """Return the token that followed the n-gram most often, of equals the latest; -1 if nothing did.

        A node of ``depth`` tokens knows no continuation.
        """
        best = self._best[node]
        return -1 if best < 0 else self._keys[best][1]

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        for token in tokens:
            self._append(int(token))

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens, as if the others had never been appended. Raises ConfigError."""
        if not 0 <= length <= len(self.tokens):
            raise ConfigError(f"cannot keep {length} of {len(self.tokens)} tokens")
        while len(self.tokens) > length:
            self._remove_last()

    def _append(self, token: int) -> None:
        end = len(self.tokens)
        parents = (ROOT, *self.suffixes()[: self.depth - 1])
        nodes, previous_ends, previous_best = [], [], []
        for parent in parents:
            node = self._children.get((parent, token), -1)
            if node < 0:
                node = len(self._counts)
                self._children[parent, token] = node
                self._keys.append((parent, token))
                self._counts.append(0)
                self._ends.append(-1)
                self._best.append(-1)
            nodes.append(node)
            previous_ends.append(self._ends[node])
            best = self._best[parent]
            previous_best.append(best)
            self._ends[node] = end
            self._counts[node] += 1
            # Only this child has gained, and it is the latest: it leads as soon as it draws level.
            if best < 0 or self._counts[node] >= self._counts[best]:
                self._best[parent] = node
        self.tokens.append(token)
        self._steps.append(_Step(tuple(nodes), tuple(previous_ends), tuple(previous_best)))

    def _remove_last(self) -> None:
        step = self._steps.pop()
        self.tokens.pop()
        for node, end, best in reversed(list(zip(*step, strict=True))):
            parent, _ = key = self._keys[node]
            self._best[parent] = best
            self._ends[node] = end
            self._counts[node] -= 1
            if self._counts[node] == 0:
                # Nothing younger than this node is left, so it is the last one.
                del self._children[key]
                for column in (self._keys, self._counts, self._ends, self._best):
                    column.pop()
