"""Speculations, and the distribution that each token was drawn from: the rejection rule needs it to be exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from sonoran.errors import ConfigError
from sonoran.types import Float64Array, IntArray, Origin


@dataclass(frozen=True, slots=True)
class SparseDistribution:
    """The token was drawn from exactly these ids (ascending) with these probabilities (float64, sum 1)."""

    ids: IntArray
    probabilities: Float64Array

    def probability(self, token: int) -> float:
        """Return q(token)."""
        index = int(np.searchsorted(self.ids, token))
        if index == len(self.ids) or int(self.ids[index]) != token:
            return 0.0
        return float(self.probabilities[index])

    def on(self, ids: IntArray, token: int) -> Float64Array:
        """Return q on ``ids``; ``token`` is the one that was proposed."""
        index = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[index] == ids, self.probabilities[index], 0.0)


@dataclass(frozen=True, slots=True)
class UniformDistribution:
    """The token was drawn uniformly from the ids below ``size``."""

    size: int

    def probability(self, token: int) -> float:
        """Return q(token)."""
        return 1.0 / self.size if 0 <= token < self.size else 0.0

    def on(self, ids: IntArray, token: int) -> Float64Array:
        """Return q on ``ids``; ``token`` is the one that was proposed."""
        return np.where(ids < self.size, 1.0 / self.size, 0.0)


@dataclass(frozen=True, slots=True)
class PointMass:
    """The token was not drawn at random but chosen: an n-gram, an argmax."""

    def probability(self, token: int) -> float:
        """Return q of the proposed token, which is 1."""
        return 1.0

    def on(self, ids: IntArray, token: int) -> Float64Array:
        """Return q on ``ids``; ``token`` is the one that was proposed."""
        return np.where(ids == token, 1.0, 0.0)


ProposalDistribution: TypeAlias = SparseDistribution | UniformDistribution | PointMass


@dataclass(frozen=True, slots=True)
class Speculation:
    """Tokens to verify and, for the rejection rule, one distribution per token; the coupled rule needs none.

    A distribution must be the one that the token was really drawn from, given the tokens before it. Whether a drawn
    token is sent must not depend on its value: dropping unlikely draws changes the distribution. ``origin`` is for
    reports.
    """

    tokens: tuple[int, ...] = ()
    distributions: tuple[ProposalDistribution, ...] = ()
    origin: Origin = field(default="draft", compare=False)

    def __post_init__(self) -> None:
        if self.distributions and len(self.distributions) != len(self.tokens):
            raise ConfigError(
                f"a speculation of {len(self.tokens)} tokens needs one distribution each, got {len(self.distributions)}"
            )

    def __len__(self) -> int:
        return len(self.tokens)

    @staticmethod
    def chosen(tokens: Sequence[int]) -> Speculation:
        """Build from tokens that were chosen without chance (n-grams)."""
        return Speculation(tuple(tokens), (PointMass(),) * len(tokens), "ngram")

    @staticmethod
    def uniform(tokens: Sequence[int], size: int) -> Speculation:
        """Build from tokens drawn uniformly from the ids below ``size``."""
        return Speculation(tuple(tokens), (UniformDistribution(size),) * len(tokens), "random")

    def cut(self, length: int) -> Speculation:
        """Return the first ``length`` tokens with their distributions."""
        return Speculation(self.tokens[:length], self.distributions[:length], self.origin)


EMPTY = Speculation(origin="none")
