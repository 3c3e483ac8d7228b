"""Running statistics of verification outcomes: what fan-out, backup choice and reports are computed from.

Counts are kept per origin of the verified speculation and fade with every observation of that origin.
Estimates are smoothed by a prior worth a few observations: a constant acceptance rate and a power-law rank
distribution, under which the measured fan-out is the geometric one (Theorem 12). Statistics merge and
travel as plain dicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np

from sonoran.errors import ConfigError
from sonoran.theory.distributions import Floats, concave_majorant, expected_hit_rate, power_law_cdf
from sonoran.theory.speedup import hit_rate_limit, tokens_from_lengths
from sonoran.types import Origin, Outcome


class OutcomeCounts:
    """Faded counts of one origin; everything in one vector, so that fading and merging are one operation."""

    def __init__(self, max_tokens: int, max_rank: int) -> None:
        self.max_tokens, self.max_rank = max_tokens, max_rank
        self.vector = np.zeros(5 + 2 * max_tokens + 2 * (max_rank + 1))

    @property
    def totals(self) -> Floats:  # rounds, emitted tokens, lookups, hits, rounds in all (never faded)
        return self.vector[:5]

    @property
    def reached(self) -> Floats:  # [max_tokens]: token i + 1 was proposed and all before it were accepted
        return self.vector[5 : 5 + self.max_tokens]

    @property
    def passed(self) -> Floats:  # [max_tokens]: ... and it was accepted too
        return self.vector[5 + self.max_tokens : 5 + 2 * self.max_tokens]

    @property
    def ranks(self) -> Floats:  # [2, max_rank + 1]: k < K, k = K; the last column is "further down"
        return self.vector[5 + 2 * self.max_tokens :].reshape(2, self.max_rank + 1)


ORIGINS: tuple[Origin, ...] = get_args(Origin)
Group = Literal["primary", "backup"]


def group_of(origin: Origin) -> Group:
    """Return whether an origin is the cache (primary) or any of the backups (Definition 6)."""
    return "primary" if origin == "primary" else "backup"


def origins_of(group: Group) -> tuple[Origin, ...]:
    """Return the origins of a group."""
    return tuple(o for o in ORIGINS if group_of(o) == group)


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed before anything was seen, worth ``strength`` observations."""

    acceptance: float = 0.8  # of a model draft; n-grams count half of it, random tokens nothing
    exponent: float = 1.0  # r of the power law
    hit_rate: float = 0.7
    strength: float = 16.0

    def acceptance_of(self, origin: Origin) -> float:
        """Return the believed acceptance rate of an origin's tokens."""
        factor = {"primary": 1.0, "draft": 1.0, "ngram": 0.5, "random": 0.0, "none": 0.0}
        return factor[origin] * self.acceptance


class OutcomeStatistics:
    """Faded counts of outcomes by origin, and the estimates made from them.

    ``max_tokens`` is the longest speculation that is told apart, ``max_rank`` the deepest rank; ``decay``
    is what a count keeps per later observation of the same origin (0.999: a memory of about a thousand
    rounds). Raises ConfigError.
    """

    def __init__(
        self, max_tokens: int = 16, max_rank: int = 64, decay: float = 0.999, prior: Prior | None = None
    ) -> None:
        if max_tokens < 1 or max_rank < 1:
            raise ConfigError(f"max_tokens and max_rank must be >= 1, got {max_tokens!r} and {max_rank!r}")
        if not 0.0 < decay <= 1.0:
            raise ConfigError(f"decay must lie in (0, 1], got {decay!r}; nearest valid value: 1")
        self.max_tokens, self.max_rank, self.decay = max_tokens, max_rank, decay
        self.prior = prior or Prior()
        self._counts: dict[Origin, OutcomeCounts] = {o: OutcomeCounts(max_tokens, max_rank) for o in ORIGINS}
        prior_cdf = concave_majorant(power_law_cdf(self.prior.exponent, max_rank))
        self._prior_ranks = np.append(np.diff(prior_cdf), 1.0 - prior_cdf[-1])

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
        rounds_in_all = counts.totals[4]
        counts.vector *= self.decay
        counts.totals[:] += (1.0, accepted + 1.0, hit is not None, hit is True, 0.0)
        counts.totals[4] = rounds_in_all + 1.0
        counts.reached[: min(accepted + 1, proposed)] += 1.0
        counts.passed[:accepted] += 1.0
        if rank is not None:
            column = rank - 1 if 1 <= rank <= self.max_rank else self.max_rank
            counts.ranks[int(accepted == proposed), column] += 1.0

    def rounds(self, origin: Origin) -> int:
        """Return how many verifications of this origin were seen, not faded."""
        return round(float(self._counts[origin].totals[4]))

    def acceptance(self, *origins: Origin) -> float:
        """Return the estimate of a, the acceptance rate per token given that all before were accepted."""
        chosen = origins or ("primary",)
        s = self.prior.strength
        passed = sum(float(self._counts[o].passed.sum()) for o in chosen)
        reached = sum(float(self._counts[o].reached.sum()) for o in chosen)
        believed = sum(self.prior.acceptance_of(o) for o in chosen) / len(chosen)
        return (passed + s * believed) / (reached + s)

    def lengths(self, origin: Origin, num_speculative_tokens: int) -> list[float]:
        """Return the probabilities of 0..K accepted tokens.

        Built from the acceptance rate of each position, so speculations that were cut short count for the
        positions they had. Positions rarely reached lean on the pooled rate.
        """
        counts, pooled, s = self._counts[origin], self.acceptance(origin), self.prior.strength
        alive, law = 1.0, []
        for i in range(num_speculative_tokens):
            j = min(i, self.max_tokens - 1)
            rate = float((counts.passed[j] + s * pooled) / (counts.reached[j] + s))
            law.append(alive * (1.0 - rate))
            alive *= rate
        return [*law, alive]

    def rank_cdf(self, origin: Origin, all_accepted: bool) -> Floats:
        """Return h(F) for F = 0..max_rank: the bonus token is among the first F candidates.

        Concave (the least concave majorant of what was counted), so the greedy rule is exact on it.
        """
        seen = self._counts[origin].ranks[int(all_accepted)]
        s = self.prior.strength
        law = (seen + s * self._prior_ranks) / (seen.sum() + s)
        return concave_majorant(np.concatenate([[0.0], np.cumsum(law[:-1])]))

    def cdfs(self, origin: Origin, num_speculative_tokens: int) -> list[Floats]:
        """Return one rank cdf per k = 0..K."""
        return [self.rank_cdf(origin, False)] * num_speculative_tokens + [self.rank_cdf(origin, True)]

    def exponent(self, origin: Origin = "primary") -> float:
        """Return the estimate of r: the power law ``1 - h(F) = F^(-r)`` fitted to both rank classes, F >= 2.

        Least squares in log-log coordinates through the origin; a class weighs as often as it was seen.
        """
        top = slice(2, min(self.max_rank, 16) + 1)
        x = np.log(np.arange(self.max_rank + 1, dtype=np.float64)[top])
        weights = self._counts[origin].ranks.sum(axis=1) + self.prior.strength
        misses = [np.maximum(1.0 - self.rank_cdf(origin, last)[top], 1e-9) for last in (False, True)]
        slopes = [self.prior.exponent if x.size == 0 else -float(x @ np.log(m) / (x @ x)) for m in misses]
        return max(0.01, float(np.dot(weights, slopes) / weights.sum()))

    def hit_rate(self, group: Group) -> float:
        """Return the estimate of p_hit given a verified speculation from ``group`` (Definition 6)."""
        return self._ratio(origins_of(group), 3, 2, self.prior.hit_rate)

    def hit_rate_after(self, origin: Origin) -> float:
        """Return the same for one origin; it leans on the group's rate while rarely seen."""
        return self._ratio((origin,), 3, 2, self.hit_rate(group_of(origin)))

    def overall_hit_rate(self) -> float:
        """Return the long-run hit rate that follows from both (Eq. 1)."""
        return hit_rate_limit(self.hit_rate("primary"), self.hit_rate("backup"))

    def predicted_hit_rate(self, origin: Origin, fan_out: Iterable[int]) -> float:
        """Return the hit rate that the counts predict for a fan-out list of K + 1 entries."""
        chosen = list(fan_out)
        k = len(chosen) - 1
        return expected_hit_rate(chosen, self.lengths(origin, k), self.cdfs(origin, k))

    def mean_tokens(self, origin: Origin, num_speculative_tokens: int) -> float:
        """Return the tokens of a round whose speculation came from ``origin``: E_hit or E_miss, bonus
        included.

        Rarely seen origins lean on what their accepted lengths promise for K tokens.
        """
        expected = tokens_from_lengths(self.lengths(origin, num_speculative_tokens))
        return self._ratio((origin,), 1, 0, expected)

    def _ratio(self, origins: Iterable[Origin], above: int, below: int, believed: float) -> float:
        totals = sum((self._counts[o].totals for o in origins), np.zeros(5))
        s = self.prior.strength
        return float((totals[above] + s * believed) / (totals[below] + s))

    def merge(self, other: OutcomeStatistics) -> None:
        """Add the counts of ``other`` (another sequence, worker or run).

        Raises ConfigError on other sizes.
        """
        if (self.max_tokens, self.max_rank) != (other.max_tokens, other.max_rank):
            raise ConfigError(
                f"statistics of sizes {self.max_tokens, self.max_rank} and {other.max_tokens, other.max_rank}"
                " cannot be merged"
            )
        for origin in ORIGINS:
            self._counts[origin].vector += other._counts[origin].vector

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: sizes, decay, prior, and the counts of every origin that was seen."""
        return {
            "max_tokens": self.max_tokens,
            "max_rank": self.max_rank,
            "decay": self.decay,
            "prior": {f: getattr(self.prior, f) for f in ("acceptance", "exponent", "hit_rate", "strength")},
            "counts": {o: c.vector.tolist() for o, c in self._counts.items() if c.totals[4] > 0},
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> OutcomeStatistics:
        """Rebuild statistics from ``to_dict``.

        Raises ConfigError when the data does not fit its own sizes.
        """
        try:
            result = OutcomeStatistics(
                data["max_tokens"], data["max_rank"], data["decay"], Prior(**data["prior"])
            )
            for name, values in data["counts"].items():
                counts = result._counts[cast(Origin, name)]
                vector = np.asarray(values, np.float64)
                if vector.shape != counts.vector.shape or not np.all(np.isfinite(vector) & (vector >= 0.0)):
                    raise ValueError(f"counts of {name!r} have the wrong size or are negative")
                counts.vector[:] = vector
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"not a saved outcome statistic: {error!r}") from error
        return result

    def summary(self, num_speculative_tokens: int) -> dict[str, Any]:
        """Return what a report prints: hit rates, and by origin a, r, mean tokens, length law."""
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
