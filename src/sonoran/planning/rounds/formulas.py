"""The same rounds in closed form: the formulas of the SSD paper with measured terms.

Exact averages where no answer is cut short and all rows are alike; ``events`` covers the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sonoran.planning.rounds.behaviour import Behaviour
from sonoran.planning.rounds.costs import Costs
from sonoran.planning.rounds.plan import RoundAverages, RoundPlan
from sonoran.theory.speedup import (
    batch_speedup,
    draft_round_time,
    hit_rate_limit,
    sd_speedup,
    tokens_from_lengths,
)


def predict(plan: RoundPlan, costs: Costs, behaviour: Behaviour) -> RoundAverages:
    """Return long-run averages of a plan. Raises PlanError."""
    if plan.mode == "ar":
        return autoregressive(plan, costs)
    if plan.mode == "sd":
        return synchronous(plan, costs, behaviour.synchronous_lengths(plan.num_speculative_tokens))
    k, backup = plan.num_speculative_tokens, plan.backup
    kept = 0 if backup == "none" else k
    guesses = plan.fan_out if kept else (sum(plan.fan_out),)
    return speculative(
        plan,
        costs,
        after_primary=behaviour.hit_rate("primary", plan.fan_out),
        after_backup=behaviour.hit_rate(backup, guesses),
        tokens_hit=tokens_from_lengths(behaviour.lengths("primary", k)),
        tokens_miss=tokens_from_lengths(behaviour.lengths(backup, kept)),
    )


@dataclass(frozen=True, slots=True)
class Beyond:
    """Passes of ``rows`` rows where only ``measured`` were measured: their time is assumed."""

    curve: str
    rows: int
    measured: float


def extrapolations(plan: RoundPlan, costs: Costs) -> list[Beyond]:
    """Say which passes of a plan have more rows than were measured."""
    batch, rows = plan.batch, plan.batch * (plan.num_speculative_tokens + 1)
    passes = {"target": rows}
    if plan.mode == "ssd":
        passes |= {"trunk": rows, "tree": batch * sum(plan.fan_out)}
    if plan.mode == "sd" or (plan.mode == "ssd" and plan.backup == "draft"):
        passes["draft"] = batch
    measured = {name: costs.measured_rows(name) for name in passes}
    return [Beyond(name, count, measured[name]) for name, count in passes.items() if count > measured[name]]


def autoregressive(plan: RoundPlan, costs: Costs) -> RoundAverages:
    """AR: a pass and the work after it per token."""
    verify = costs.verify_ms(plan.batch)
    total = verify + costs.after_pass_ms(plan.batch)
    return RoundAverages("ar", 1e3 * plan.batch / total, 1.0, total, verify, 0.0, 0)


def synchronous(plan: RoundPlan, costs: Costs, lengths: Sequence[float]) -> RoundAverages:
    """SD with ``lengths[k]`` of all rounds accepting k tokens: ``E / (1 + T)`` in units of a verification.

    Raises PlanError.
    """
    k, batch, tokens = plan.num_speculative_tokens, plan.batch, tokens_from_lengths(lengths)
    rows = batch * (k + 1)
    verify = costs.verify_ms(rows)
    wait = costs.drafting_ms(k, batch, lengths[-1] / math.fsum(lengths))
    unit = verify + costs.after_pass_ms(batch * tokens)
    speed = sd_speedup(tokens, wait / unit) / unit
    return RoundAverages(
        "sd", 1e3 * batch * speed, tokens, unit + wait, verify, wait, 0, acceptance_rate=(tokens - 1.0) / k
    )


def speculative(
    plan: RoundPlan,
    costs: Costs,
    *,
    after_primary: float,
    after_backup: float,
    tokens_hit: float,
    tokens_miss: float,
) -> RoundAverages:
    """SSD from hit rates by origin (Eq. 1) and tokens by origin (Theorem 7, Corollary 16 for a batch).

    The unit of the theorems' latencies is a round in which every row hits, so a draft that is not hidden
    makes the unit longer, also for rounds with a miss. Raises PlanError.
    """
    k, batch = plan.num_speculative_tokens, plan.batch
    p = hit_rate_limit(after_primary, after_backup)
    kept = 0 if plan.backup == "none" else k
    rows = batch * (1.0 + p * k + (1.0 - p) * kept)
    branches = batch * sum(plan.fan_out)
    build = draft_round_time(0.0, costs.trunk_ms(round(rows), batch), costs.tree_ms(branches), k)
    beside, alone = costs.verify_ms(round(rows), beside=True), costs.verify_ms(round(rows))
    verify = beside if build >= beside else build + (1.0 - build / beside) * alone
    emitted = p * tokens_hit + (1.0 - p) * tokens_miss
    after = costs.after_pass_ms(batch * emitted)
    target = verify + after + costs.message_ms
    unit = costs.service_ms + max(target, build)
    backup = k * costs.draft_ms(max(1, round(batch * (1.0 - p)))) if plan.backup == "draft" else 0.0
    speed = batch_speedup(p, tokens_hit, tokens_miss, 1.0, backup / unit, batch) / unit
    total = emitted / speed
    return RoundAverages(
        "ssd",
        tokens_per_s=1e3 * batch * speed,
        tokens_per_round=emitted,
        round_ms=total,
        verify_ms=verify,
        wait_ms=max(0.0, total - verify - after),
        rounds=0,
        hit_rate=p,
        hit_rate_after_primary=after_primary,
        hit_rate_after_backup=after_backup,
        tokens_hit=tokens_hit,
        tokens_miss=tokens_miss,
        draft_round_ms=build,
    )
