"""How many outcomes the draft guesses in a round, and for which sequence and number of accepted tokens."""

from __future__ import annotations

from collections.abc import Sequence

from sonoran.drafting.fan_out import Floats
from sonoran.drafting.fan_out_policy import RoundCosts, best_budget, largest_hidden_budget
from sonoran.drafting.guesses import Prices, likeliest, worthwhile
from sonoran.draftworker.context import DEFAULT_BUDGET, Context
from sonoran.draftworker.sequences import DraftSequence
from sonoran.draftworker.settings import AUTO
from sonoran.theory.rounds import draft_round_time
from sonoran.types import Origin

COUNTS_NEEDED = 24
"""Rounds with a cached speculation from which the hit rate of a budget is predicted."""

LARGEST_BUDGET = 32
"""Guesses per sequence that ``auto`` never exceeds."""

_WEIGHT = 0.1  # of a round in the running mean of guesses


def choose_fan_outs(context: Context, batch: Sequence[DraftSequence]) -> list[list[int]]:
    """Return F_0..F_K of each sequence, whose candidates are ranked."""
    beliefs = [s.beliefs for s in batch if s.beliefs is not None]
    if len(beliefs) == len(batch):
        chances = [belief.mixed(context.trust.weight) for belief in beliefs]
        fan_outs = likeliest(chances, _worthwhile_guesses(context, batch, chances))
    else:
        fan_outs = [listed(context, s, len(batch)) for s in batch]
    for fan_out in fan_outs:
        context.guesses += _WEIGHT * (sum(fan_out) - context.guesses)
    return fan_outs


def listed(context: Context, s: DraftSequence, sequences: int = 1) -> list[int]:
    """Return the list that the average of all rounds gives for verifying what a sequence was sent."""
    return context.fan_out.list_for(s.origin, len(s.sent), average_budget(context, sequences))


def typical_budget(context: Context) -> int:
    """Return the guesses per sequence that are usual now, for reports."""
    if context.settings.budget == AUTO and context.settings.fan_out == "confidence" and context.guesses:
        return max(1, round(context.guesses))
    return average_budget(context, 1)


def average_budget(context: Context, sequences: int) -> int:
    """Return the guesses per sequence: as set, or what is best by the measured times and counts.

    Until there are counts it is the most that the draft finishes in time.
    """
    if context.settings.budget != AUTO:
        return int(context.settings.budget)
    verification = context.backup.verification_ms
    if not verification or not context.latency.known:
        return DEFAULT_BUDGET
    k = context.settings.num_speculative_tokens
    if context.statistics.rounds("primary") < COUNTS_NEEDED:
        return largest_hidden_budget(
            context.latency, verification, k, sequences=sequences, limit=LARGEST_BUDGET
        )
    miss: Origin = "draft" if _drafts_on_miss(context) else "none"
    costs = RoundCosts(
        context.latency,
        verification,
        (context.backup.draft_ms or 0.0) if miss == "draft" else 0.0,
        context.statistics.mean_tokens("primary", k),
        context.statistics.mean_tokens(miss, k),
        sequences,
    )

    def predicted_hits(budget: int) -> float:
        chosen = context.fan_out.list_for("primary", k, budget)
        return context.statistics.predicted_hit_rate("primary", chosen)

    return best_budget(costs, predicted_hits, k)


def _worthwhile_guesses(
    context: Context, batch: Sequence[DraftSequence], chances: Sequence[Sequence[Floats]]
) -> int:
    """Return the guesses of all sequences together under the rule ``confidence``."""
    if context.settings.budget != AUTO:
        return int(context.settings.budget) * len(batch)
    verification, rate = context.backup.verification_ms, context.pace.rate
    if not verification or not context.latency.known or not rate:
        return DEFAULT_BUDGET * len(batch)
    steps = max(s.wanted for s in batch)
    trunk = context.latency(sum(len(s.sent) + 1 for s in batch))
    drafts = _drafts_on_miss(context)
    lost = context.statistics.mean_tokens("primary", steps) - context.statistics.mean_tokens(
        "draft" if drafts else "none", steps
    )
    prices = Prices(
        lambda branches: draft_round_time(0.0, trunk, context.latency(branches), steps),
        verification,
        (context.backup.draft_ms or 0.0) if drafts else 0.0,
        max(0.0, lost) / rate,
    )
    return worthwhile(chances, prices, LARGEST_BUDGET * len(batch))


def _drafts_on_miss(context: Context) -> bool:
    return context.settings.backup in ("draft", AUTO)
