"""Speculation cache (Definition 4): outcome -> speculation, built during one verification, read once.

A sequence has at most one round in the cache. The tree decode appends one token to all of its branches per
step, so a round that is read early gives a shorter speculation instead of none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from sonoran.errors import ConfigError
from sonoran.sampling.proposals import Law, Speculation
from sonoran.types import Outcome

END = -1
"""In place of a token: the branch has ended."""


@dataclass(slots=True)
class _Round:
    generation: int
    branches: dict[Outcome, int]
    tokens: list[Sequence[int]] = field(default_factory=list)  # per step, one token for each branch
    laws: list[Sequence[Law]] = field(default_factory=list)


class SpeculationCache:
    """Rounds of all sequences of a draft worker, at most ``max_branches`` guessed outcomes together.

    The oldest round goes when room is needed; its sequence then misses. Raises ConfigError for a bound
    below 1.
    """

    def __init__(self, max_branches: int = 4096) -> None:
        if max_branches < 1:
            raise ConfigError(f"max_branches must be >= 1, got {max_branches!r}; nearest valid value: 1")
        self.max_branches = max_branches
        self._rounds: OrderedDict[int, _Round] = OrderedDict()
        self._branches = 0

    def __len__(self) -> int:
        """Number of guessed outcomes in the cache."""
        return self._branches

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._rounds

    def open(self, sequence: int, generation: int, outcomes: Sequence[Outcome]) -> None:
        """Start a round of ``sequence``, replacing its previous one.

        Raises ConfigError if it can never fit.
        """
        branches = {outcome: i for i, outcome in enumerate(outcomes)}
        if len(branches) != len(outcomes):
            raise ConfigError(f"the same outcome was guessed twice: {list(outcomes)!r}")
        if len(branches) > self.max_branches:
            raise ConfigError(f"{len(branches)} branches exceed the cache of {self.max_branches}")
        self.drop(sequence)
        while self._branches + len(branches) > self.max_branches:
            self.drop(next(iter(self._rounds)))
        self._rounds[sequence] = _Round(generation, branches)
        self._branches += len(branches)

    def append(self, sequence: int, generation: int, tokens: Sequence[int], laws: Sequence[Law] = ()) -> bool:
        """Add one drafted token to every branch, in the order of ``open``; False if the round is gone.

        A branch that gets no more tokens has ``END``, and some law, in each further step. ``laws`` has one law per
        branch under the rejection rule, in every step or in none. Raises ConfigError.
        """
        current = self._rounds.get(sequence)
        if current is None or current.generation != generation:
            return False
        if len(tokens) != len(current.branches) or len(laws) not in (0, len(tokens)):
            raise ConfigError(
                f"{len(current.branches)} branches, but {len(tokens)} tokens and {len(laws)} laws"
            )
        if current.tokens and bool(laws) != bool(current.laws):
            raise ConfigError("laws must be given in every step of a round or in none")
        current.tokens.append(tokens)
        if laws:
            current.laws.append(laws)
        return True

    def take(self, sequence: int, generation: int, outcome: Outcome) -> Speculation | None:
        """Return what was drafted for ``outcome``, None on a miss; either way the round is over.

        The speculation has as many tokens as steps were appended, possibly none, fewer if its branch ended. A
        request of an older generation is late: it misses and leaves the round alone. A newer one finds the round
        outdated: it misses and drops it.
        """
        current = self._rounds.get(sequence)
        if current is None or generation < current.generation:
            return None
        self.drop(sequence)
        branch = current.branches.get(outcome) if generation == current.generation else None
        if branch is None:
            return None
        tokens = [int(step[branch]) for step in current.tokens]
        length = tokens.index(END) if END in tokens else len(tokens)
        laws = tuple(step[branch] for step in current.laws[:length])
        return Speculation(tuple(tokens[:length]), laws)

    def drop(self, sequence: int) -> None:
        """Forget the round of a freed, cancelled or preempted sequence; harmless if there is none."""
        gone = self._rounds.pop(sequence, None)
        if gone is not None:
            self._branches -= len(gone.branches)
