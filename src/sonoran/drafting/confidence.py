"""Confidence: how likely each outcome of a verification is, by what the draft thinks of this very text.

Averages over many rounds (Theorems 12 and 18) spread a budget alike over hard and easy text. But the draft has just
read the speculation again, and its own scores tell where this one is weak: where it is sure, one guess is enough, and
where two tokens are close, the second one is the likeliest outcome of all. Same budget, more hits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sonoran.drafting.fan_out import Floats
from sonoran.drafting.statistics import OutcomeStatistics
from sonoran.sampling.params import VerificationRule
from sonoran.types import Origin, Outcome


def outcome_probabilities(scores: Sequence[Floats], rule: VerificationRule) -> list[Floats]:
    """Return the probability of each candidate (k, token) for k = 0..K, in the order of the candidates.

    ``scores[k]`` are log odds (``outcomes.score_rows``): for k < K of the sent token, then of the candidates; at k = K
    of candidates only. Coupled and greedy: the target takes what the draft would take if their scores differed by
    noise, so a token's chance is its softmax. Rejection: a token of draft probability q
    is taken to be accepted with sqrt(q), between the certainty of equal models and the q of independent draws; the
    bonus token then is one of the others.
    """
    alive, found = 1.0, []
    for k, row in enumerate(scores):
        chances = _softmax(row)
        if k == len(scores) - 1:
            found.append(alive * chances)
            break
        stays, others = float(chances[0]), chances[1:]
        if rule == "rejection":
            total = float(others.sum())
            stays = math.sqrt(stays)
            others = others * ((1.0 - stays) / total) if total > 0.0 else others
        found.append(alive * others)
        alive *= stays
    return found


class AverageLaw:
    """The same probabilities from the statistics of past rounds, recomputed every ``refresh`` of them."""

    def __init__(self, statistics: OutcomeStatistics, refresh: int = 16) -> None:
        self._statistics, self._refresh = statistics, refresh
        self._laws: dict[tuple[Origin, int], tuple[int, list[Floats]]] = {}

    def __call__(self, origin: Origin, sizes: Sequence[int]) -> list[Floats]:
        """Return the probability of the first ``sizes[k]`` candidates at every k, given what was sent."""
        k, epoch = len(sizes) - 1, self._statistics.rounds(origin) // self._refresh
        known = self._laws.get((origin, k))
        if known is None or known[0] != epoch:
            lengths, cdfs = self._statistics.lengths(origin, k), self._statistics.cdfs(origin, k)
            known = epoch, [p * np.diff(cdf) for p, cdf in zip(lengths, cdfs, strict=True)]
            self._laws[origin, k] = known
        return [
            np.concatenate([law[:size], np.zeros(max(0, size - len(law)))])
            for law, size in zip(known[1], sizes, strict=True)
        ]


@dataclass(slots=True)
class Beliefs:
    """Probabilities of a sequence's outcomes by the draft's confidence, and on average."""

    confident: list[Floats]
    average: list[Floats]

    def mixed(self, trust: float) -> list[Floats]:
        """Return what is believed with that much trust in the confidence."""
        return [trust * c + (1.0 - trust) * a for c, a in zip(self.confident, self.average, strict=True)]


@dataclass(slots=True)
class Trust:
    """The posterior weight of the draft's confidence against the average, by which predicted the outcomes better.

    Both keep a share of at least ``forget`` (a fixed-share mixture), so that a change of text is noticed.
    """

    weight: float = 0.8
    forget: float = 0.02

    def observe(self, beliefs: Beliefs, outcome: Outcome, rank: int) -> None:
        """Count an outcome whose bonus token had ``rank`` among the candidates; 0 (none of them) tells nothing."""
        if rank < 1:
            return
        confident = self.weight * float(beliefs.confident[outcome.accepted][rank - 1])
        average = (1.0 - self.weight) * float(beliefs.average[outcome.accepted][rank - 1])
        if confident + average > 0.0:
            share = confident / (confident + average)
            self.weight = self.forget + (1.0 - 2.0 * self.forget) * share


def _softmax(scores: Floats) -> Floats:
    if not len(scores):
        return np.zeros(0)
    largest = float(scores.max())
    weights = np.exp(scores - largest) if math.isfinite(largest) else np.ones(len(scores))
    chances: Floats = weights / weights.sum()
    return chances
