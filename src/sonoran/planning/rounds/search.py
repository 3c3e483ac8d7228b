"""The best K of each mode, and the best fan-out of SSD, for costs and acceptance that are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sonoran.planning.rounds.behaviour import Behaviour
from sonoran.planning.rounds.costs import Costs
from sonoran.planning.rounds.formulas import Beyond, extrapolations, predict
from sonoran.planning.rounds.plan import FixedBackup, RoundAverages, RoundPlan
from sonoran.ssd.fan_out import measured

LARGEST_K = 12
BUDGETS = (4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True, slots=True)
class Found:
    """A plan, its averages by the closed form, and which of its passes have more rows than were measured."""

    plan: RoundPlan
    averages: RoundAverages
    extrapolated: list[Beyond]


def best_plans(
    costs: Costs,
    behaviour: Behaviour,
    *,
    batch: int = 1,
    ks: Sequence[int] = range(1, LARGEST_K + 1),
    budgets: Sequence[int] = BUDGETS,
    backups: Sequence[FixedBackup] = ("draft", "none"),
) -> dict[str, Found]:
    """Return the fastest plan of AR, SD and SSD. SSD's guesses are spread as Theorem 18 has it. Raises PlanError."""
    plans = {"ar": [RoundPlan("ar", batch=batch)], "sd": [RoundPlan("sd", k, batch) for k in ks]}
    plans["ssd"] = [
        RoundPlan("ssd", k, batch, spread(behaviour, budget, k), backup=backup)
        for k in ks
        for budget in budgets
        for backup in backups
    ]
    return {
        mode: max((_found(plan, costs, behaviour) for plan in of), key=_speed) for mode, of in plans.items()
    }


def spread(behaviour: Behaviour, budget: int, num_speculative_tokens: int) -> tuple[int, ...]:
    """Return the fan-out F_0..F_K of a budget that hits most often after a cached speculation (Theorem 18)."""
    k = num_speculative_tokens
    ranks = [behaviour.rejected_cdf] * k + [behaviour.accepted_cdf]
    return tuple(measured(budget, behaviour.lengths("primary", k), ranks))


def _found(plan: RoundPlan, costs: Costs, behaviour: Behaviour) -> Found:
    return Found(plan, predict(plan, costs, behaviour), extrapolations(plan, costs))


def _speed(found: Found) -> float:
    return found.averages.tokens_per_s
