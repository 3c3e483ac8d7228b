"""The budget: how many outcomes the draft guesses in a round. ``choose_fan_outs`` decides it for a batch.

It is the number that was set or, under ``auto``, by the rule of fan-out:

- ``confidence``: for all sequences together, the number with the shortest expected round (``shortest_round``);
- the others: per sequence, the number with the highest expected speed-up (``best_budget``), and until rounds
  were counted the largest whose draft round ends before verification does (``largest_hidden_budget``).

Until passes were timed it is DEFAULT_BUDGET.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sonoran.config import AUTO
from sonoran.ssd.context import DEFAULT_BUDGET, Context
from sonoran.ssd.fan_out import likeliest, likeliest_first
from sonoran.ssd.sequence import DraftSequence
from sonoran.theory.distributions import Floats, expected_hit_rate
from sonoran.theory.speedup import batch_speedup, draft_round_time
from sonoran.types import Origin

COUNTS_NEEDED = 24
"""Rounds with a cached speculation from which the hit rate of a budget is predicted."""

LARGEST_BUDGET = 32
"""Guesses per sequence that ``auto`` never exceeds."""

_CANDIDATES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, LARGEST_BUDGET)
_SPREAD = 0.1  # of the length of a verification, relative, where two processes share memory
_WEIGHT = 0.1  # of a round in the running mean of guesses


def choose_fan_outs(context: Context, batch: Sequence[DraftSequence]) -> list[list[int]]:
    """Decide what is guessed in this round: F_0..F_K of each sequence, whose candidates are ranked."""
    predictions = [s.prediction for s in batch if s.prediction is not None]
    if len(predictions) == len(batch):
        probabilities = [p.mixed(context.confidence.weight) for p in predictions]
        fan_outs = likeliest(probabilities, _guesses_by_confidence(context, batch, probabilities))
    else:
        budget = average_budget(context, len(batch))
        fan_outs = [context.fan_out.list_for(s.origin, len(s.sent), budget) for s in batch]
    for fan_out in fan_outs:
        context.guesses += _WEIGHT * (sum(fan_out) - context.guesses)
    return fan_outs


def average_budget(context: Context, sequences: int = 1) -> int:
    """Return the guesses per sequence that the average of all rounds suggests for a batch of ``sequences``."""
    if context.settings.budget != AUTO:
        return int(context.settings.budget)
    k = context.settings.num_speculative_tokens
    costs = _round_costs(context, sequences * (k + 1), k)
    if costs is None:
        return DEFAULT_BUDGET
    statistics = context.statistics
    if statistics.rounds("primary") < COUNTS_NEEDED:
        return largest_hidden_budget(costs, sequences)
    lengths, cdfs = statistics.lengths("primary", k), statistics.cdfs("primary", k)

    def hit_rate(budget: int) -> float:
        return expected_hit_rate(context.fan_out.list_for("primary", k, budget), lengths, cdfs)

    return best_budget(costs, hit_rate, sequences)


def typical_budget(context: Context) -> int:
    """Return the guesses per sequence that are usual now, for reports."""
    if context.settings.budget == AUTO and context.settings.fan_out == "confidence" and context.guesses:
        return max(1, round(context.guesses))
    return average_budget(context)


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """What guesses are weighed by: times in ms of a round of the whole batch, and tokens of a round of one sequence."""

    draft_ms: Callable[[int], float]  # of a draft round with that many branches in all
    verification_ms: float
    backup_ms: float  # what a miss waits for
    tokens_on_hit: float
    tokens_on_miss: float


def largest_hidden_budget(costs: RoundCosts, sequences: int = 1, limit: int = LARGEST_BUDGET) -> int:
    """Return the largest budget per sequence whose draft round ends before verification does.

    1 when not even that one is hidden: an early outcome then cuts it short. Raises PlanError for negative times.
    """
    for budget in range(limit, 1, -1):
        if costs.draft_ms(sequences * budget) <= costs.verification_ms:
            return budget
    return 1


def best_budget(costs: RoundCosts, hit_rate: Callable[[int], float], sequences: int = 1) -> int:
    """Return the budget per sequence with the highest speed-up by Corollary 16 (Theorem 7 for one sequence).

    ``hit_rate(B)`` is what the counts predict. More guesses hit more often, but a draft round that outlasts the
    verification makes every hit wait, so neither "all that is finished in time" nor "as many as possible" is best
    in general. The smallest wins a tie. Raises PlanError for impossible costs.
    """
    verify = costs.verification_ms

    def speedup(budget: int) -> float:
        return batch_speedup(
            hit_rate(budget),
            costs.tokens_on_hit,
            costs.tokens_on_miss,
            costs.draft_ms(sequences * budget) / verify,
            costs.backup_ms / verify,
            sequences,
        )

    return max(_CANDIDATES, key=lambda budget: (speedup(budget), -budget))


def shortest_round(
    probabilities: Sequence[Sequence[Floats]], costs: RoundCosts, tokens_per_ms: float, limit: int
) -> int:
    """Return how many guesses make the expected round of the batch shortest: its wait for the longer of verification
    and drafting, for the backup if any sequence misses, and the time that the tokens lost by misses are worth.

    Other than Corollary 16 it has the hit rates of this very round, one for each sequence, and a verification
    whose length is not known exactly. At least one guess for each sequence, at most ``limit`` in all.
    """
    needed = len(probabilities)
    loss_ms = max(0.0, costs.tokens_on_hit - costs.tokens_on_miss) / tokens_per_ms
    missing = [1.0] * needed
    best, least = needed, math.inf
    for count, (sequence, _, p) in enumerate(likeliest_first(probabilities)[: max(limit, needed)], start=1):
        missing[sequence] = max(0.0, missing[sequence] - p)
        if count < needed:
            continue
        any_miss = 1.0 - math.prod(1.0 - m for m in missing)
        length = _expected_longer(costs.verification_ms, costs.draft_ms(count))
        total = length + any_miss * costs.backup_ms + math.fsum(missing) * loss_ms
        if total < least:
            best, least = count, total
    return best


def _guesses_by_confidence(
    context: Context, batch: Sequence[DraftSequence], probabilities: Sequence[Sequence[Floats]]
) -> int:
    """Return the guesses of all sequences together under the rule ``confidence``."""
    if context.settings.budget != AUTO:
        return int(context.settings.budget) * len(batch)
    costs = _round_costs(context, sum(len(s.sent) + 1 for s in batch), max(s.wanted for s in batch))
    if costs is None or not context.pace.rate:
        return DEFAULT_BUDGET * len(batch)
    return shortest_round(probabilities, costs, context.pace.rate, LARGEST_BUDGET * len(batch))


def _round_costs(context: Context, trunk_rows: int, steps: int) -> RoundCosts | None:
    """Return the costs of a round of ``steps`` tree steps as measured; None until they are known."""
    verification = context.backup.verification_ms
    if not verification or not context.latency.known:
        return None
    trunk = context.latency(trunk_rows)
    drafts = context.settings.backup in ("draft", AUTO)
    miss: Origin = "draft" if drafts else "none"
    return RoundCosts(
        lambda branches: draft_round_time(0.0, trunk, context.latency(branches), steps),
        verification,
        (context.backup.draft_ms or 0.0) if drafts else 0.0,
        context.statistics.mean_tokens("primary", steps),
        context.statistics.mean_tokens(miss, steps),
    )


def _expected_longer(verification: float, draft: float) -> float:
    """Return E max(V, draft) for a normal V around ``verification``."""
    spread = _SPREAD * verification
    if spread <= 0.0:
        return max(verification, draft)
    z = (draft - verification) / spread
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return verification + spread * (density + z * 0.5 * (1.0 + math.erf(z / math.sqrt(2.0))))
