"""How often a draft's tokens were accepted, and where the bonus token ranked, at every position of texts read along."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from sonoran.config import Verification
from sonoran.errors import PlanError
from sonoran.theory.distributions import Floats, concave_majorant

DEEPEST = 64
"""Ranks beyond this are all counted as the next one."""

CANDIDATES = 8
"""Candidates of a position whose chances are kept."""

LEAST_POSITIONS = 200
"""By fewer positions a draft is not judged: see ``judged``."""

TYPICAL_RATE = 0.7
"""Acceptance that a draft is taken to have until it is measured: a judgement, not a measurement."""

Chances = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class TextRanks:
    """One text, position by position. Raises PlanError for ranks that cannot be.

    ``rejected`` is 0 where the draft's token was accepted, else the rank of the bonus token among the candidates
    without the sent one. ``free`` is its rank where nothing was sent. ``chances`` are what the draft gave the sent
    token and then its leading candidates, ``free_chances`` the candidates where nothing was sent; empty if not kept.
    """

    rejected: tuple[int, ...]
    free: tuple[int, ...]
    chances: Chances = ()
    free_chances: Chances = ()

    def __post_init__(self) -> None:
        if len(self.rejected) != len(self.free):
            raise PlanError(
                f"a text has {len(self.rejected)} and {len(self.free)} positions; they must agree"
            )
        if any(len(kept) not in (0, len(self.free)) for kept in (self.chances, self.free_chances)):
            raise PlanError("a text keeps the chances of all its positions, or of none")
        if any(not 0 <= rank <= DEEPEST + 1 for rank in self.rejected):
            raise PlanError(f"ranks after a rejection lie from 0 (accepted) to {DEEPEST + 1}")
        if any(not 1 <= rank <= DEEPEST + 1 for rank in self.free):
            raise PlanError(f"ranks of the bonus token lie from 1 to {DEEPEST + 1}")


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Texts under one verification rule and temperature; their perplexities under both models."""

    verification: Verification
    temperature: float
    texts: tuple[TextRanks, ...]
    target_perplexity: float | None = None
    draft_perplexity: float | None = None

    def __post_init__(self) -> None:
        if not any(len(text.rejected) for text in self.texts):
            raise PlanError("acceptance needs at least one position")

    @property
    def has_chances(self) -> bool:
        """Whether the draft's confidence is known everywhere."""
        return all(len(text.chances) == len(text.free_chances) == len(text.free) for text in self.texts)

    @property
    def positions(self) -> int:
        """Return how many positions were looked at."""
        return sum(len(text.rejected) for text in self.texts)

    @property
    def longest(self) -> int:
        """Return the positions of the longest text."""
        return max(len(text.rejected) for text in self.texts)

    @property
    def rate(self) -> float:
        """Return the share of positions where the draft's token was accepted."""
        return sum(text.rejected.count(0) for text in self.texts) / self.positions

    @property
    def standard_error(self) -> float:
        """Return the standard error of ``rate``, from how much texts differ; binomial for a single text."""
        n, rate = self.positions, self.rate
        if len(self.texts) < 2:
            return math.sqrt(rate * (1.0 - rate) / n)
        sizes = np.array([len(text.rejected) for text in self.texts], float)
        passed = np.array([text.rejected.count(0) for text in self.texts], float)
        # Ratio estimator over clusters: texts are drawn, positions inside a text resemble each other.
        residual = passed - rate * sizes
        variance = float((residual**2).sum()) * len(sizes) / (len(sizes) - 1)
        return math.sqrt(variance) / n

    @property
    def rejected_cdf(self) -> Floats:
        """Return h(F) after a rejection, F = 0..DEEPEST, made concave."""
        return _cdf([rank for text in self.texts for rank in text.rejected if rank])

    @property
    def free_cdf(self) -> Floats:
        """Return h(F) where nothing was sent, F = 0..DEEPEST, made concave."""
        return _cdf([rank for text in self.texts for rank in text.free])


def judged(acceptance: Acceptance) -> Acceptance:
    """Fill what was measured up to ``LEAST_POSITIONS`` with positions of a typical draft."""
    missing = LEAST_POSITIONS - acceptance.positions
    if missing <= 0:
        return acceptance
    return replace(acceptance, texts=(*acceptance.texts, _typical(max(missing, 2 * CANDIDATES))))


def _typical(length: int) -> TextRanks:
    """Return a text of a draft with the typical rate; every second miss is the draft's next candidate."""
    random = np.random.default_rng(0)
    rejected = np.where(random.random(length) < TYPICAL_RATE, 0, random.geometric(0.5, length))
    ranks = tuple(int(rank) for rank in np.minimum(rejected, DEEPEST))
    return TextRanks(ranks, tuple(rank + 1 for rank in ranks))


def _cdf(ranks: list[int]) -> Floats:
    counts = np.bincount(np.asarray(ranks, np.int64), minlength=DEEPEST + 2)[: DEEPEST + 1].astype(np.float64)
    counts[0] = 0.0
    return concave_majorant(np.cumsum(counts) / max(1, len(ranks)))
