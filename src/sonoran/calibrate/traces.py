"""Acceptance, position by position, of text that the target generated and the draft read along.

A trace keeps two ranks for each position of a text. ``rejected[i]`` is 0 when the draft's token there was
accepted, else the rank (from 1) of the target's token among the draft's candidates without the one it sent.
``free[i]`` is that rank when nothing was sent. Deeper than ``DEEPEST`` counts as ``DEEPEST + 1``. Since accepted
tokens are the text, this is all that a round of any K and any fan-out list depends on.

For the fan-out rule ``confidence`` it keeps what the draft believed as well: ``chances[i]`` of the token that it sent,
then of its leading candidates to replace it, and ``free_chances[i]`` of its candidates where nothing was sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sonoran.drafting.fan_out import Floats, concave_majorant
from sonoran.errors import PlanError

DEEPEST = 64
CANDIDATES = 8
"""Candidates of a position whose chances are kept."""

Chances = tuple[tuple[float, ...], ...]
Verification = Literal["coupled", "rejection"]


@dataclass(frozen=True, slots=True)
class Trace:
    """One text. Raises PlanError for ranks that cannot be."""

    rejected: tuple[int, ...]
    free: tuple[int, ...]
    chances: Chances = ()
    free_chances: Chances = ()

    def __post_init__(self) -> None:
        if len(self.rejected) != len(self.free):
            raise PlanError(
                f"a trace has {len(self.rejected)} and {len(self.free)} positions; they must agree"
            )
        if any(len(kept) not in (0, len(self.free)) for kept in (self.chances, self.free_chances)):
            raise PlanError("a trace keeps the chances of all its positions, or of none")
        if any(not 0 <= rank <= DEEPEST + 1 for rank in self.rejected):
            raise PlanError(f"ranks after a rejection lie from 0 (accepted) to {DEEPEST + 1}")
        if any(not 1 <= rank <= DEEPEST + 1 for rank in self.free):
            raise PlanError(f"ranks of the bonus token lie from 1 to {DEEPEST + 1}")


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Traces under one verification rule and temperature; perplexities of the text under both models."""

    verification: Verification
    temperature: float
    traces: tuple[Trace, ...]
    target_perplexity: float | None = None
    draft_perplexity: float | None = None

    def __post_init__(self) -> None:
        if not any(len(trace.rejected) for trace in self.traces):
            raise PlanError("acceptance needs at least one position")

    @property
    def has_chances(self) -> bool:
        """Whether the draft's confidence is known everywhere."""
        return all(len(trace.chances) == len(trace.free_chances) == len(trace.free) for trace in self.traces)

    @property
    def positions(self) -> int:
        """Return how many positions were looked at."""
        return sum(len(trace.rejected) for trace in self.traces)

    @property
    def rate(self) -> float:
        """Return the share of positions where the draft's token was accepted."""
        return sum(trace.rejected.count(0) for trace in self.traces) / self.positions

    @property
    def standard_error(self) -> float:
        """Return the standard error of ``rate``, from how much texts differ; binomial for a single text."""
        n, rate = self.positions, self.rate
        if len(self.traces) < 2:
            return math.sqrt(rate * (1.0 - rate) / n)
        sizes = np.array([len(trace.rejected) for trace in self.traces], float)
        passed = np.array([trace.rejected.count(0) for trace in self.traces], float)
        # Ratio estimator over clusters: texts are drawn, positions inside a text resemble each other.
        residual = passed - rate * sizes
        variance = float((residual**2).sum()) * len(sizes) / (len(sizes) - 1)
        return math.sqrt(variance) / n

    @property
    def rejected_cdf(self) -> Floats:
        """Return h(F) after a rejection, F = 0..DEEPEST, made concave."""
        return _cdf([rank for trace in self.traces for rank in trace.rejected if rank])

    @property
    def free_cdf(self) -> Floats:
        """Return h(F) where nothing was sent, F = 0..DEEPEST, made concave."""
        return _cdf([rank for trace in self.traces for rank in trace.free])


def _cdf(ranks: list[int]) -> Floats:
    counts = np.bincount(np.asarray(ranks, np.int64), minlength=DEEPEST + 2)[: DEEPEST + 1].astype(np.float64)
    counts[0] = 0.0
    return concave_majorant(np.cumsum(counts) / max(1, len(ranks)))
