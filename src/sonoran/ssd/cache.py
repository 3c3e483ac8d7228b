"""Speculation cache of one sequence (Definition 4): outcome -> speculation, built during one verification, read once.

The tree decode appends one token to all branches per step, so a cache that is read early gives a shorter speculation
instead of none.
"""

from __future__ import annotations

from collections.abc import Sequence

from sonoran.errors import ConfigError
from sonoran.sampling.proposals import ProposalDistribution, Speculation
from sonoran.types import Outcome

END = -1
"""In place of a token: the branch has ended."""


class SpeculationCache:
    """What a sequence gets for each guessed outcome of the verification under way."""

    def __init__(self) -> None:
        self._branches: dict[Outcome, int] = {}
        self._tokens: list[Sequence[int]] = []  # per step, one token for each branch
        self._distributions: list[Sequence[ProposalDistribution]] = []

    def __len__(self) -> int:
        """Number of guessed outcomes."""
        return len(self._branches)

    def open(self, outcomes: Sequence[Outcome]) -> None:
        """Start anew with guesses, which have no tokens yet. Raises ConfigError when one was made twice."""
        branches = {outcome: i for i, outcome in enumerate(outcomes)}
        if len(branches) != len(outcomes):
            raise ConfigError(f"the same outcome was guessed twice: {list(outcomes)!r}")
        self._branches, self._tokens, self._distributions = branches, [], []

    def append(self, tokens: Sequence[int], distributions: Sequence[ProposalDistribution] = ()) -> None:
        """Add one drafted token to every branch, in the order of ``open``.

        A branch that gets no more tokens has ``END``, and any distribution, in each further step. There is one
        distribution per branch under the rejection rule, in every step or in none. Raises ConfigError.
        """
        if len(tokens) != len(self._branches) or len(distributions) not in (0, len(tokens)):
            raise ConfigError(
                f"{len(self._branches)} branches, but {len(tokens)} tokens and {len(distributions)} distributions"
            )
        if self._tokens and bool(distributions) != bool(self._distributions):
            raise ConfigError("distributions must be given in every step or in none")
        self._tokens.append(tokens)
        if distributions:
            self._distributions.append(distributions)

    def take(self, outcome: Outcome) -> Speculation | None:
        """Return what was drafted for ``outcome``, None on a miss; either way the cache is empty afterwards.

        The speculation has as many tokens as steps were appended, possibly none, fewer if its branch ended.
        """
        branch, steps, distributions = self._branches.get(outcome), self._tokens, self._distributions
        self.open(())
        if branch is None:
            return None
        tokens = [int(step[branch]) for step in steps]
        length = tokens.index(END) if END in tokens else len(tokens)
        return Speculation(tuple(tokens[:length]), tuple(step[branch] for step in distributions[:length]))
