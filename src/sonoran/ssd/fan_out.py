"""Fan-out: where guesses go, that is how many for each number k = 0..K of accepted tokens, given a budget B
for all of them. How large B is, is decided in ssd/budget.py.

Every rule returns K + 1 integers >= 0 with sum B. ``lengths[k]`` is the probability that exactly k tokens
are accepted, ``cdfs[k][F]`` the probability that the bonus token is among the first F guesses at k
(``cdfs[k][0] == 0``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from sonoran.config import FanOutRule
from sonoran.errors import ConfigError, nearest
from sonoran.ssd.statistics import OutcomeStatistics, group_of
from sonoran.theory.distributions import Floats
from sonoran.types import Origin


def uniform(budget: int, num_speculative_tokens: int) -> list[int]:
    """Return the same fan-out everywhere; what is left over goes to k = K, then k = 0, 1, 2, ...

    "All accepted" is by far the most frequent length of a good draft, so K comes first. Raises ConfigError.
    """
    _check(budget, num_speculative_tokens)
    positions = num_speculative_tokens + 1
    share, left = divmod(budget, positions)
    fan_out = [share] * positions
    for k in [num_speculative_tokens, *range(num_speculative_tokens)][:left]:
        fan_out[k] += 1
    return fan_out


def geometric_shares(
    budget: float, num_speculative_tokens: int, acceptance: float, exponent: float
) -> list[float]:
    """Return the real-valued optimum for acceptance rate a and an r-power-law hit rate (Theorem 12).

    ``F_k = F_0 a^(k/(1+r))`` for k < K and ``F_K = F_0 a^(K/(1+r)) (1-a)^(-1/(1+r))``. Raises ConfigError.
    """
    _check(budget, num_speculative_tokens)
    if not 0.0 <= acceptance <= 1.0:
        raise ConfigError(f"acceptance must lie in [0, 1], got {acceptance!r}")
    if not (math.isfinite(exponent) and exponent > 0.0):
        raise ConfigError(f"the power-law exponent must be positive, got {exponent!r}")
    k_max = num_speculative_tokens
    if acceptance == 1.0 or k_max == 0:
        return [0.0] * k_max + [float(budget)]
    root = 1.0 / (1.0 + exponent)
    weights = [acceptance ** (k * root) for k in range(k_max + 1)]
    weights[k_max] *= (1.0 - acceptance) ** -root
    scale = budget / math.fsum(weights)
    return [scale * w for w in weights]


def geometric(budget: int, num_speculative_tokens: int, acceptance: float, exponent: float) -> list[int]:
    """Return Theorem 12 in integers, by largest remainder.

    With B < K + 1 the least likely positions come out empty, because F_k grows with the probability of k.
    Raises ConfigError.
    """
    return largest_remainder(geometric_shares(budget, num_speculative_tokens, acceptance, exponent), budget)


def largest_remainder(shares: Sequence[float], total: int) -> list[int]:
    """Round shares >= 0 of sum ``total`` to integers of the same sum; ties go to the smaller index."""
    # Shares such as 3.0 may arrive as 2.9999999; without the nudge their floor would be one short.
    floors = [math.floor(s + 1e-9) for s in shares]
    order = sorted(range(len(shares)), key=lambda k: (floors[k] - shares[k], k))
    for k in order[: total - sum(floors)]:
        floors[k] += 1
    return floors


def measured(budget: int, lengths: Sequence[float], cdfs: Sequence[Sequence[float] | Floats]) -> list[int]:
    """Return the greedy integer form of Theorem 18: each guess goes where it gains the most hit probability.

    Optimal when every cdf is concave (each further guess gains less than the one before); see
    ``concave_majorant``. Beyond the end of a cdf nothing is gained; guesses that gain nothing go to the
    likeliest k. Raises ConfigError.
    """
    _check(budget, len(lengths) - 1)
    if len(cdfs) != len(lengths):
        raise ConfigError(f"{len(lengths)} lengths need as many cdfs, got {len(cdfs)}")
    gains = [p * np.diff(np.asarray(cdf, np.float64)) for p, cdf in zip(lengths, cdfs, strict=True)]
    fan_out = [0] * len(lengths)
    heads = [float(g[0]) if len(g) else 0.0 for g in gains]
    for _ in range(budget):
        k = max(range(len(heads)), key=lambda i: (heads[i], lengths[i] if heads[i] <= 0.0 else 0.0))
        fan_out[k] += 1
        heads[k] = float(gains[k][fan_out[k]]) if fan_out[k] < len(gains[k]) else 0.0
    return fan_out


def resize(fan_out: Sequence[int], num_speculative_tokens: int) -> list[int]:
    """Fit an explicit list to another K: the last entry stays "all accepted", the others keep their k.

    A longer K repeats the last entry before it. Raises ConfigError for an empty or negative list.
    """
    if not fan_out or not all(type(f) is int and f >= 0 for f in fan_out):
        raise ConfigError(f"a fan-out list needs K + 1 integers >= 0, got {list(fan_out)!r}")
    *head, last = fan_out
    filler = head[-1] if head else last
    return [*(head + [filler] * num_speculative_tokens)[:num_speculative_tokens], last]


def _check(budget: float, num_speculative_tokens: int) -> None:
    if not (math.isfinite(budget) and budget >= 0):
        raise ConfigError(f"the fan-out budget must be >= 0, got {budget!r}; nearest valid value: 0")
    if num_speculative_tokens < 0:
        raise ConfigError(f"num_speculative_tokens must be >= 0, got {num_speculative_tokens!r}")


def likeliest(probabilities: Sequence[Sequence[Floats]], total: int) -> list[list[int]]:
    """Return F_0..F_K of each sequence: the ``total`` likeliest outcomes of all together, at least one of each.

    ``probabilities[s][k]`` are those of sequence s's candidates at k, best first. Fewer when there are fewer
    candidates. Raises ConfigError when there are fewer guesses than sequences.
    """
    if total < len(probabilities):
        raise ConfigError(f"{total} guesses are too few for {len(probabilities)} sequences")
    fan_out = [[0] * len(rows) for rows in probabilities]
    for sequence, k, _ in likeliest_first(probabilities)[:total]:
        fan_out[sequence][k] += 1
    return fan_out


def likeliest_first(probabilities: Sequence[Sequence[Floats]]) -> list[tuple[int, int, float]]:
    """Return (sequence, k, probability) of all candidates, likeliest first.

    Ahead of them all is, for each sequence, "all accepted, then the best candidate": so a draft that is right is
    always hit, however unsure it is.
    """
    first, rest = [], []
    for sequence, rows in enumerate(probabilities):
        last = len(rows) - 1
        found = [(sequence, k, float(p)) for k, row in enumerate(rows) for p in row]
        at = next((i for i, (_, k, _) in enumerate(found) if k == last), 0)
        first += found[at : at + 1]
        rest += found[:at] + found[at + 1 :]
    return first + sorted(rest, key=lambda candidate: -candidate[2])


REFRESH = 32
"""Observations of an origin after which its list is computed anew."""


@dataclass
class FanOutPolicy:
    """The list of guesses at each k that the average of all rounds suggests, by the rule that is set.

    ``budget`` is guesses per sequence. ``confidence`` decides anew in each round (ssd/budget.py); its list is
    that of ``measured``, an average. ``primary`` and ``backup`` are the lists of the rule ``explicit``
    (backup defaults to primary). Raises ConfigError.
    """

    statistics: OutcomeStatistics
    rule: FanOutRule
    budget: int
    primary: Sequence[int] | None = None
    backup: Sequence[int] | None = None
    _lists: dict[tuple[Origin, int, int], tuple[int, list[int]]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.rule not in get_args(FanOutRule):
            raise ConfigError(
                f"unknown fan-out rule {self.rule!r}{nearest(str(self.rule), get_args(FanOutRule))}"
            )
        if self.budget < 1:
            raise ConfigError(f"the fan-out budget must be >= 1, got {self.budget!r}; nearest valid value: 1")
        if (self.rule == "explicit") != (self.primary is not None):
            raise ConfigError("the fan-out rule 'explicit' needs a list after primary, the others take none")
        if self.backup is not None and self.primary is None:
            raise ConfigError("a fan-out list after backup needs one after primary")
        for explicit in (self.primary, self.backup):
            if explicit is not None:
                resize(explicit, 0)

    def list_for(self, origin: Origin, num_speculative_tokens: int, budget: int | None = None) -> list[int]:
        """Return F_0..F_K for verifying K tokens from ``origin``; ``budget`` overrides the policy's own.

        The sum is the budget, except for explicit lists, which are what they are.
        """
        size = self.budget if budget is None else budget
        key = (origin, num_speculative_tokens, size)
        epoch = self.statistics.rounds(origin) // REFRESH
        cached = self._lists.get(key)
        if cached is None or cached[0] != epoch:
            cached = (epoch, self._compute(origin, num_speculative_tokens, size))
            self._lists[key] = cached
        return list(cached[1])

    def _compute(self, origin: Origin, k: int, budget: int) -> list[int]:
        statistics = self.statistics
        if self.primary is not None:
            after_backup = self.primary if self.backup is None else self.backup
            return resize(self.primary if group_of(origin) == "primary" else after_backup, k)
        if self.rule == "uniform":
            return uniform(budget, k)
        if self.rule in ("measured", "confidence"):
            return measured(budget, statistics.lengths(origin, k), statistics.cdfs(origin, k))
        return geometric(budget, k, statistics.acceptance(origin), statistics.exponent(origin))
