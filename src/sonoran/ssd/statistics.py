"""Running statistics of verification outcomes: what fan-out, backup choice and reports are computed from.

Counts are kept per origin of the verified speculation and fade with every observation of that origin.
Estimates are smoothed by a prior worth a few observations: a constant acceptance rate and a power-law rank
distribution, under which the measured fan-out is the geometric one (Theorem 12).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

import numpy as np

from sonoran.errors import ConfigError
from sonoran.theory.distributions import (
    Floats,
    concave_majorant,
    length_distribution,
    power_law_cdf,
)
from sonoran.theory.speedup import hit_rate_limit, tokens_from_lengths
from sonoran.types import Origin, Outcome

MAX_TOKENS = 16
"""Longest speculation whose positions are told apart; later ones count as the last."""

MAX_RANK = 64
"""Deepest rank of a bonus token that is told apart."""

DECAY = 0.999
"""What a count keeps per later observation of the same origin: a memory of about a thousand rounds."""

PRIOR_STRENGTH = 16.0
"""Observations that the prior is worth."""

PRIOR_ACCEPTANCE: dict[Origin, float] = {
    "primary": 0.8,
    "draft": 0.8,
    "ngram": 0.4,
    "random": 0.0,
    "copy": 0.8,
    "none": 0.0,
}
PRIOR_EXPONENT = 1.0  # r of the power law
PRIOR_HIT_RATE = 0.7

_PRIOR_CDF = concave_majorant(power_law_cdf(PRIOR_EXPONENT, MAX_RANK))
_PRIOR_RANKS = np.append(np.diff(_PRIOR_CDF), 1.0 - _PRIOR_CDF[-1])
_FITTED_RANKS = slice(
    2, 17
)  # where the exponent is fitted: from the first guess that can gain on a power law


class OutcomeCounts:
    """Counts of one origin. All but ``rounds`` fade together, so they are views of one vector."""

    def __init__(self) -> None:
        self.rounds = 0
        self.faded = np.zeros(4 + 2 * MAX_TOKENS + 2 * (MAX_RANK + 1))
        totals, reached, passed, ranks = np.split(self.faded, np.cumsum([4, MAX_TOKENS, MAX_TOKENS]))
        self.totals: Floats = totals  # rounds, emitted tokens, lookups, hits
        self.reached: Floats = reached  # [MAX_TOKENS]: token i + 1 was proposed, all before it were accepted
        self.passed: Floats = passed  # [MAX_TOKENS]: ... and it was accepted too
        self.ranks: Floats = ranks.reshape(2, -1)  # [k < K, k = K; MAX_RANK + 1]: last is "further down"


ORIGINS: tuple[Origin, ...] = get_args(Origin)
Group = Literal["primary", "backup"]


def group_of(origin: Origin) -> Group:
    """Return whether an origin is the cache (primary) or any of the backups (Definition 6)."""
    return "primary" if origin == "primary" else "backup"


def origins_of(group: Group) -> tuple[Origin, ...]:
    """Return the origins of a group."""
    return tuple(o for o in ORIGINS if group_of(o) == group)


class OutcomeStatistics:
    """Faded counts of outcomes by origin, and the estimates made from them."""

    def __init__(self) -> None:
        self._counts: dict[Origin, OutcomeCounts] = {origin: OutcomeCounts() for origin in ORIGINS}

    def observe(
        self,
        origin: Origin,
        proposed: int,
        outcome: Outcome,
        rank: int | None = None,
        hit: bool | None = None,
    ) -> None:
        """Count one verification of a speculation of ``proposed`` tokens from ``origin``.

        ``rank`` is the 1-based rank of the bonus token among the draft's candidates at its position, 0 when
        it was not among them, None when unknown; ``hit`` says whether it was found in the cache, None when
        there was no cache.
        """
        accepted = outcome.accepted
        if not 0 <= accepted <= proposed:
            raise ConfigError(f"{accepted} of {proposed} proposed tokens cannot have been accepted")
        counts = self._counts[origin]
        counts.rounds += 1
        counts.faded *= DECAY
        counts.totals += (1.0, accepted + 1.0, hit is not None, hit is True)
        counts.reached[: min(accepted + 1, proposed)] += 1.0
        counts.passed[:accepted] += 1.0
        if rank is not None:
            column = rank - 1 if 1 <= rank <= MAX_RANK else MAX_RANK
            counts.ranks[int(accepted == proposed), column] += 1.0

    def rounds(self, origin: Origin) -> int:
        """Return how many verifications of this origin were seen, not faded."""
        return self._counts[origin].rounds

    def acceptance(self, *origins: Origin) -> float:
        """Return the estimate of a, the acceptance rate per token given that all before were accepted."""
        chosen = origins or ("primary",)
        passed = sum(float(self._counts[o].passed.sum()) for o in chosen)
        reached = sum(float(self._counts[o].reached.sum()) for o in chosen)
        prior = sum(PRIOR_ACCEPTANCE[o] for o in chosen) / len(chosen)
        return (passed + PRIOR_STRENGTH * prior) / (reached + PRIOR_STRENGTH)

    def lengths(self, origin: Origin, num_speculative_tokens: int) -> list[float]:
        """Return the probabilities of 0..K accepted tokens.

        Built from the acceptance rate of each position, so speculations that were cut short count for the
        positions they had. Positions rarely reached lean on the pooled rate.
        """
        counts, pooled = self._counts[origin], self.acceptance(origin)
        rates = (counts.passed + PRIOR_STRENGTH * pooled) / (counts.reached + PRIOR_STRENGTH)
        return length_distribution(rates.tolist(), num_speculative_tokens)

    def rank_cdf(self, origin: Origin, all_accepted: bool) -> Floats:
        """Return h(F) for F = 0..MAX_RANK: the bonus token is among the first F candidates.

        Concave (the least concave majorant of what was counted), so the greedy rule is exact on it.
        """
        seen = self._counts[origin].ranks[int(all_accepted)]
        chances = (seen + PRIOR_STRENGTH * _PRIOR_RANKS) / (seen.sum() + PRIOR_STRENGTH)
        return concave_majorant(np.concatenate([[0.0], np.cumsum(chances[:-1])]))

    def cdfs(self, origin: Origin, num_speculative_tokens: int) -> list[Floats]:
        """Return one rank cdf per k = 0..K."""
        return [self.rank_cdf(origin, False)] * num_speculative_tokens + [self.rank_cdf(origin, True)]

    def exponent(self, origin: Origin = "primary") -> float:
        """Return the estimate of r: the power law ``1 - h(F) = F^(-r)`` fitted to both rank classes, F >= 2.

        Least squares in log-log coordinates through the origin; a class weighs as often as it was seen.
        """
        x = np.log(np.arange(MAX_RANK + 1, dtype=np.float64)[_FITTED_RANKS])
        weights = self._counts[origin].ranks.sum(axis=1) + PRIOR_STRENGTH
        misses = [
            np.maximum(1.0 - self.rank_cdf(origin, last)[_FITTED_RANKS], 1e-9) for last in (False, True)
        ]
        slopes = [-float(x @ np.log(m) / (x @ x)) for m in misses]
        return max(0.01, float(np.dot(weights, slopes) / weights.sum()))

    def hit_rate(self, group: Group) -> float:
        """Return the estimate of p_hit given a verified speculation from ``group`` (Definition 6)."""
        return self._ratio(origins_of(group), 3, 2, PRIOR_HIT_RATE)

    def hit_rate_after(self, origin: Origin) -> float:
        """Return the same for one origin; it leans on the group's rate while rarely seen."""
        return self._ratio((origin,), 3, 2, self.hit_rate(group_of(origin)))

    def overall_hit_rate(self) -> float:
        """Return the long-run hit rate that follows from both (Eq. 1)."""
        return hit_rate_limit(self.hit_rate("primary"), self.hit_rate("backup"))

    def mean_tokens(self, origin: Origin, num_speculative_tokens: int) -> float:
        """Return the tokens of a round whose speculation came from ``origin``: E_hit or E_miss, bonus
        included.

        Rarely seen origins lean on what their accepted lengths promise for K tokens.
        """
        expected = tokens_from_lengths(self.lengths(origin, num_speculative_tokens))
        return self._ratio((origin,), 1, 0, expected)

    def _ratio(self, origins: Iterable[Origin], above: int, below: int, prior: float) -> float:
        totals = sum((self._counts[o].totals for o in origins), np.zeros(4))
        return float((totals[above] + PRIOR_STRENGTH * prior) / (totals[below] + PRIOR_STRENGTH))

    def summary(self, num_speculative_tokens: int) -> dict[str, Any]:
        """Return what a report prints: hit rates, and by origin a, r, mean tokens, distribution of lengths."""
        seen = [o for o in ORIGINS if self.rounds(o) > 0]
        return {
            "hit_rate_after_primary": self.hit_rate("primary"),
            "hit_rate_after_backup": self.hit_rate("backup"),
            "origins": {
                o: {
                    "rounds": self.rounds(o),
                    "acceptance": self.acceptance(o),
                    "exponent": self.exponent(o),
                    "mean_tokens": self.mean_tokens(o, num_speculative_tokens),
                    "lengths": self.lengths(o, num_speculative_tokens),
                }
                for o in seen
            },
        }
