"""How many outcomes the draft guesses in a round, and for which sequence and number of accepted tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sonoran.config import AUTO
from sonoran.errors import ConfigError
from sonoran.ssd.context import DEFAULT_BUDGET, Context
from sonoran.ssd.fan_out import RoundCosts, best_budget, largest_hidden_budget
from sonoran.ssd.sequence import DraftSequence
from sonoran.theory.distributions import Floats
from sonoran.theory.speedup import draft_round_time
from sonoran.types import Origin

_SPREAD = 0.1  # of the length of a verification, relative, where two processes share memory


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
