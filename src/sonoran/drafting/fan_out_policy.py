"""The fan-out in force: a rule, a budget that may follow the draft's speed, and lists by origin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from sonoran.drafting.fan_out import geometric, measured, resize, uniform
from sonoran.drafting.statistics import OutcomeStatistics, group_of
from sonoran.errors import ConfigError, nearest
from sonoran.theory.rounds import draft_round_time, is_hidden
from sonoran.theory.speedup import batch_speedup
from sonoran.types import Origin

Rule = Literal["confidence", "uniform", "geometric", "measured", "explicit"]
RULES: tuple[Rule, ...] = get_args(Rule)


def largest_hidden_budget(
    row_latency: Callable[[int], float],
    verification_ms: float,
    num_speculative_tokens: int,
    *,
    sequences: int = 1,
    service_ms: float = 0.0,
    limit: int = 64,
) -> int:
    """Return the largest budget B per sequence, up to ``limit``, whose draft round ends before verification.

    ``row_latency(n)`` is the time of a draft pass of n rows in ms. A round is the service, a trunk pass of
    K + 1 rows and K tree steps of B rows, for each sequence. 1 when not even that is hidden: an early
    answer then cuts it short. Raises PlanError for negative times.
    """
    trunk = row_latency(sequences * (num_speculative_tokens + 1))
    for budget in range(limit, 1, -1):
        step = row_latency(sequences * budget)
        if is_hidden(draft_round_time(service_ms, trunk, step, num_speculative_tokens), verification_ms):
            return budget
    return 1


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """What a budget is weighed by: measured times in ms, tokens per round, and ``sequences`` in the batch."""

    row_latency: Callable[[int], float]  # of a draft pass of n rows
    verification_ms: float
    backup_ms: float  # what a miss waits for
    tokens_on_hit: float
    tokens_on_miss: float
    sequences: int = 1


def best_budget(
    costs: RoundCosts,
    hit_rate: Callable[[int], float],
    num_speculative_tokens: int,
    candidates: Sequence[int] = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32),
) -> int:
    """Return the budget per sequence with the highest speed-up by Corollary 16 (Theorem 7 for one sequence).

    ``hit_rate(B)`` is what the counts predict. More guesses hit more often, but a draft round that outlasts the
    verification makes every hit wait, so neither "all that is finished in time" nor "as many as possible" is best
    in general. The smallest wins a tie. Raises PlanError for impossible costs.
    """
    k, verify = num_speculative_tokens, costs.verification_ms
    trunk = costs.row_latency(costs.sequences * (k + 1))

    def speedup(budget: int) -> float:
        draft = draft_round_time(0.0, trunk, costs.row_latency(costs.sequences * budget), k)
        return batch_speedup(
            hit_rate(budget),
            costs.tokens_on_hit,
            costs.tokens_on_miss,
            draft / verify,
            costs.backup_ms / verify,
            costs.sequences,
        )

    return max(candidates, key=lambda budget: (speedup(budget), -budget))


@dataclass
class FanOutPolicy:
    """What the draft asks each round: how many guesses at each k, given what it is guessing about.

    ``budget`` is guesses per sequence. ``confidence`` decides anew in each round (drafting/confidence.py); its list is
    that of ``measured``, an average. ``primary`` and ``backup`` are the lists of the rule ``explicit``
    (backup defaults to primary). ``acceptance`` and ``exponent`` fix a and r of the rule ``geometric``;
    otherwise they are the running estimates. Lists are recomputed every ``refresh`` observations of an
    origin. Raises ConfigError.
    """

    statistics: OutcomeStatistics
    rule: Rule = "measured"
    budget: int = 8
    primary: Sequence[int] | None = None
    backup: Sequence[int] | None = None
    acceptance: float | None = None
    exponent: float | None = None
    refresh: int = 32
    _lists: dict[tuple[Origin, int, int], tuple[int, list[int]]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ConfigError(f"unknown fan-out rule {self.rule!r}{nearest(str(self.rule), RULES)}")
        if self.budget < 1 or self.refresh < 1:
            raise ConfigError(f"budget and refresh must be >= 1, got {self.budget!r} and {self.refresh!r}")
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
        epoch = self.statistics.rounds(origin) // self.refresh
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
        a = statistics.acceptance(origin) if self.acceptance is None else self.acceptance
        r = statistics.exponent(origin) if self.exponent is None else self.exponent
        return geometric(budget, k, a, r)
