"""Confidence: how likely each outcome of a verification is, by what the draft thinks of this very text.

Averages over many rounds (Theorems 12 and 18) spread a budget alike over hard and easy text. But the draft has just
read the speculation again, and its own scores tell where this one is weak: where it is sure, one guess is enough, and
where two tokens are close, the second one is the likeliest outcome of all. Same budget, more hits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sonoran.drafting.fan_out import Floats
from sonoran.drafting.statistics import OutcomeStatistics
from sonoran.errors import ConfigError
from sonoran.sampling.params import VerificationRule
from sonoran.types import Origin, Outcome

_SPREAD = 0.1  # of the length of a verification, relative, where two processes share memory


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


def likeliest(probabilities: Sequence[Sequence[Floats]], total: int) -> list[list[int]]:
    """Return F_0..F_K of each sequence: the ``total`` likeliest outcomes of all together, at least one of each.

    Fewer when there are fewer candidates. Raises ConfigError when there are fewer guesses than sequences.
    """
    if total < len(probabilities):
        raise ConfigError(f"{total} guesses are too few for {len(probabilities)} sequences")
    fan_out = [[0] * len(rows) for rows in probabilities]
    for sequence, k, _ in _ordered(probabilities)[:total]:
        fan_out[sequence][k] += 1
    return fan_out


@dataclass(frozen=True, slots=True)
class Prices:
    """What guesses cost and what misses cost, in ms of a round of the whole batch."""

    draft_round: Callable[[int], float]  # trunk pass and tree steps with that many branches
    verification_ms: float
    wait_ms: float  # for the backup, if any row misses
    loss_ms: float  # of each row that misses: what its backup is worth less than a hit


def worthwhile(probabilities: Sequence[Sequence[Floats]], prices: Prices, limit: int) -> int:
    """Return how many guesses make the expected round shortest: the longer of verification and drafting, and misses.

    This is Theorem 7 with the hit rate of this one round, and a verification whose length is not known exactly. At
    least one guess for each sequence, at most ``limit`` in all.
    """
    needed = len(probabilities)
    missing = [1.0] * needed
    best, least = needed, math.inf
    for count, (sequence, _, chance) in enumerate(_ordered(probabilities)[: max(limit, needed)], start=1):
        missing[sequence] = max(0.0, missing[sequence] - chance)
        if count < needed:
            continue
        waits = 1.0 - math.prod(1.0 - m for m in missing)
        length = _expected_longer(prices.verification_ms, prices.draft_round(count))
        cost = length + waits * prices.wait_ms + math.fsum(missing) * prices.loss_ms
        if cost < least:
            best, least = count, cost
    return best


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


def _ordered(probabilities: Sequence[Sequence[Floats]]) -> list[tuple[int, int, float]]:
    """Return (sequence, k, chance) of all candidates, likeliest first.

    Ahead of them all is, for each sequence, "all accepted, then the best candidate": so a draft that is right is
    always hit, however little it thinks of itself.
    """
    first, rest = [], []
    for sequence, rows in enumerate(probabilities):
        last = len(rows) - 1
        found = [(sequence, k, float(p)) for k, row in enumerate(rows) for p in row]
        at = next((i for i, (_, k, _) in enumerate(found) if k == last), 0)
        first += found[at : at + 1]
        rest += found[:at] + found[at + 1 :]
    return first + sorted(rest, key=lambda candidate: -candidate[2])


def _expected_longer(verification: float, draft: float) -> float:
    """Return E max(V, draft) for a normal V around ``verification``."""
    spread = _SPREAD * verification
    if spread <= 0.0:
        return max(verification, draft)
    z = (draft - verification) / spread
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return verification + spread * (density + z * 0.5 * (1.0 + math.erf(z / math.sqrt(2.0))))


def _softmax(scores: Floats) -> Floats:
    if not len(scores):
        return np.zeros(0)
    largest = float(scores.max())
    weights = np.exp(scores - largest) if math.isfinite(largest) else np.ones(len(scores))
    chances: Floats = weights / weights.sum()
    return chances
