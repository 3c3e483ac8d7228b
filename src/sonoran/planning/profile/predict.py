"""Tokens per second of every configuration that a profile can answer for.

Closed forms of the SSD paper with measured terms, over rounds replayed from real text; the best SSD configurations
are then simulated, which covers early answers and rows that differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sonoran.errors import PlanError
from sonoran.planning.profile.acceptance import Acceptance
from sonoran.planning.profile.placement import Placement, Workload, costs_for, nearest_acceptance, placements
from sonoran.planning.profile.profile import Profile
from sonoran.planning.profile.replay import behaviour_of, best_fan_out, replay_budget, replay_lengths
from sonoran.planning.rounds.costs import Costs
from sonoran.planning.rounds.events import simulate
from sonoran.planning.rounds.formulas import autoregressive, predict, speculative, synchronous
from sonoran.planning.rounds.plan import FixedBackup, RoundAverages, RoundMode, RoundPlan
from sonoran.theory.speedup import tokens_per_round

DEFAULT_K = (1, 2, 3, 4, 5, 6, 7, 8)
DEFAULT_BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
BACKUPS: tuple[FixedBackup, ...] = ("draft", "none")
SIMULATED = 12
SIMULATED_ROUNDS = 800


@dataclass(frozen=True, slots=True)
class Prediction:
    """One configuration and what it should do. ``tokens_per_s`` is of the whole batch.

    ``uncertainty`` is relative, one standard error: spread of the passes and of the acceptance. ``extrapolated``:
    passes of more rows were needed than were measured. ``method`` says how SSD was computed.
    """

    mode: RoundMode
    placement: Placement
    batch: int
    tokens_per_s: float
    tokens_per_round: float
    round_ms: float
    verify_ms: float
    num_speculative_tokens: int = 0
    budget: int = 0
    fan_out: tuple[int, ...] = ()
    backup: FixedBackup | None = None
    hit_rate: float | None = None
    draft_ms: float | None = None  # SD: drafting before a verification; SSD: the draft's round beside it
    uncertainty: float = 0.0
    extrapolated: bool = False
    method: Literal["formula", "simulation"] = "formula"

    @property
    def label(self) -> str:
        """Return the configuration in a few words."""
        where = f"on {self.placement}"
        if self.mode == "ar":
            return f"AR {where}"
        if self.mode == "sd":
            return f"SD, K = {self.num_speculative_tokens} {where}"
        return f"SSD, K = {self.num_speculative_tokens}, budget {self.budget}, backup {self.backup}, {where}"

    @property
    def hidden(self) -> bool | None:
        """Whether SSD's drafting ends before verification does; None for the other modes."""
        if self.mode != "ssd" or self.draft_ms is None:
            return None
        return self.draft_ms <= self.verify_ms


def predict_all(
    profile: Profile,
    workload: Workload,
    *,
    k_values: Sequence[int] = DEFAULT_K,
    budgets: Sequence[int] = DEFAULT_BUDGETS,
    where: Iterable[Placement] | None = None,
    simulated: int = SIMULATED,
) -> list[Prediction]:
    """Return predictions of all configurations, fastest first; AR is always among them. Raises PlanError.

    Without a draft in the profile there is only AR. K that the texts are too short for is left out. The best
    ``simulated`` SSD configurations are simulated.
    """
    acceptance = nearest_acceptance(profile, workload)
    predictions: list[Prediction] = []
    for placement in placements(profile) if where is None else where:
        costs = costs_for(profile, placement, workload)
        if placement.kind == "alone":
            predictions.append(_autoregressive(profile, placement, workload, costs))
        elif acceptance is not None:
            for k in (k for k in k_values if 1 <= k < acceptance.longest):
                if placement.kind == "shared":
                    predictions.append(_synchronous(profile, placement, workload, costs, acceptance, k))
                else:
                    predictions += _speculative(profile, placement, workload, costs, acceptance, k, budgets)
    if not any(p.mode == "ar" for p in predictions):
        raise PlanError("the profile has no passes of the target alone for this placement; calibrate again")
    predictions.sort(key=lambda p: -p.tokens_per_s)
    if acceptance is not None:
        _simulate_best(profile, workload, acceptance, predictions, simulated)
    return sorted(predictions, key=lambda p: -p.tokens_per_s)


def _autoregressive(profile: Profile, placement: Placement, workload: Workload, costs: Costs) -> Prediction:
    result = autoregressive(RoundPlan("ar", batch=workload.batch), costs)
    return replace(
        _prediction(placement, workload, result),
        uncertainty=_timing_error(profile),
        extrapolated=workload.batch > costs.target.largest,
    )


def _synchronous(
    profile: Profile, placement: Placement, workload: Workload, costs: Costs, acceptance: Acceptance, k: int
) -> Prediction:
    result = synchronous(RoundPlan("sd", k, workload.batch), costs, replay_lengths(acceptance, k))
    return replace(
        _prediction(placement, workload, result),
        num_speculative_tokens=k,
        draft_ms=result.wait_ms,
        uncertainty=_error(profile, acceptance, k),
        extrapolated=_extrapolates(costs, workload.batch * (k + 1), workload.batch),
    )


def _speculative(
    profile: Profile,
    placement: Placement,
    workload: Workload,
    costs: Costs,
    acceptance: Acceptance,
    k: int,
    budgets: Sequence[int],
) -> list[Prediction]:
    found = []
    for budget in budgets:
        fan_out = best_fan_out(acceptance, k, budget)
        for backup in BACKUPS:
            replay = replay_budget(acceptance, k, budget, backup=backup)
            plan = RoundPlan("ssd", k, workload.batch, fan_out, backup=backup)
            result = speculative(
                plan,
                costs,
                after_primary=replay.after_primary,
                after_backup=replay.after_backup,
                tokens_hit=replay.tokens_hit,
                tokens_miss=replay.tokens_miss,
            )
            found.append(
                replace(
                    _prediction(placement, workload, result),
                    num_speculative_tokens=k,
                    budget=budget,
                    fan_out=fan_out,
                    backup=backup,
                    draft_ms=result.draft_round_ms,
                    uncertainty=_error(profile, acceptance, k),
                    extrapolated=_extrapolates(costs, workload.batch * (k + 1), workload.batch * budget),
                )
            )
    return found


def _simulate_best(
    profile: Profile, workload: Workload, acceptance: Acceptance, predictions: list[Prediction], count: int
) -> None:
    """Replace the formulas' answers for the best SSD configurations by simulated ones, in place."""
    best = [i for i, p in enumerate(predictions) if p.mode == "ssd"][:count]
    for index in best:
        p = predictions[index]
        backup = p.backup or "draft"
        replay = replay_budget(acceptance, p.num_speculative_tokens, p.budget, backup=backup)
        behaviour = behaviour_of(acceptance, p.num_speculative_tokens, replay)
        plan = RoundPlan("ssd", p.num_speculative_tokens, p.batch, p.fan_out, backup=backup)
        costs = costs_for(profile, p.placement, workload)
        event = simulate(plan, costs, behaviour, rounds=SIMULATED_ROUNDS)
        # The chances behind the simulation forget what the replay knows of runs of hits; the formula, evaluated
        # both ways, says how much that matters.
        correction = p.tokens_per_s / predict(plan, costs, behaviour).tokens_per_s
        predictions[index] = replace(
            p,
            tokens_per_s=event.tokens_per_s * correction,
            round_ms=event.round_ms,
            verify_ms=event.verify_ms,
            tokens_per_round=event.tokens_per_s * correction * event.round_ms / (1e3 * p.batch),
            method="simulation",
        )


def _prediction(placement: Placement, workload: Workload, result: RoundAverages) -> Prediction:
    return Prediction(
        result.mode,
        placement,
        workload.batch,
        result.tokens_per_s,
        result.tokens_per_round,
        result.round_ms,
        result.verify_ms,
        hit_rate=result.hit_rate,
    )


def _extrapolates(costs: Costs, target_rows: int, draft_rows: int) -> bool:
    draft = costs.draft_beside or costs.draft
    return target_rows > costs.target.largest or draft_rows > draft.largest


def _timing_error(profile: Profile) -> float:
    counts = [point.time.count for curve in profile.passes for point in curve.points]
    # Interquartile range of a normal distribution: 1.35 standard deviations; a median varies 1.25 times as a mean.
    return 1.25 * profile.spread / 1.35 / math.sqrt(max(1.0, sum(counts) / len(counts)))


def _error(profile: Profile, acceptance: Acceptance, k: int) -> float:
    """Tokens per round grow as sum a^i: d ln E / d a from the pooled rate."""
    a = min(acceptance.rate, 1.0 - 1e-9)
    slope = math.fsum(i * a ** (i - 1) for i in range(1, k + 1))
    return math.hypot(_timing_error(profile), slope * acceptance.standard_error / tokens_per_round(a, k))
