"""Speed-up of SSD and SD over autoregressive decoding (SSD paper, sections 3.2 and 4.3, appendix A).

All latencies are relative: one verification pass of the target is 1. All speed-ups are against AR, which
emits one token per pass. ``tokens_*`` are expected tokens of a round, accepted plus bonus, hence at least
1.
"""

from __future__ import annotations

import math

from sonoran.errors import PlanError
from sonoran.theory.checks import non_negative, probability, tokens


def sd_speedup(tokens_sd: float, draft_latency: float) -> float:
    """Return the speed-up of synchronous SD, ``E / (1 + T)``. Raises PlanError."""
    return tokens("tokens_sd", tokens_sd) / (1.0 + non_negative("draft_latency", draft_latency))


def ssd_speedup(
    hit_rate: float, tokens_hit: float, tokens_miss: float, primary_latency: float, backup_latency: float
) -> float:
    """Return the speed-up of SSD at batch size 1 (Theorem 7).

    A hit costs ``max(1, T_p)`` because drafting hides behind verification; a miss costs ``1 + T_b``. Raises
    PlanError.
    """
    return batch_speedup(hit_rate, tokens_hit, tokens_miss, primary_latency, backup_latency, 1)


def batch_speedup(
    hit_rate: float,
    tokens_hit: float,
    tokens_miss: float,
    primary_latency: float,
    backup_latency: float,
    batch_size: float,
) -> float:
    """Return the speed-up of SSD when the whole batch waits for any row that missed (Corollary 16).

    Rows hit independently with probability ``hit_rate``; ``batch_size`` may be ``math.inf``. Raises
    PlanError.
    """
    p = probability("hit_rate", hit_rate)
    emitted = p * tokens("tokens_hit", tokens_hit) + (1.0 - p) * tokens("tokens_miss", tokens_miss)
    hit_cost = max(1.0, non_negative("primary_latency", primary_latency))
    miss_cost = 1.0 + non_negative("backup_latency", backup_latency)
    if not batch_size >= 1:
        raise PlanError(f"batch_size must be at least 1, got {batch_size!r}; nearest valid value: 1")
    all_hit = float(p**batch_size)
    return emitted / (all_hit * hit_cost + (1.0 - all_hit) * miss_cost)


def same_speculator_gain(hit_rate: float, draft_latency: float) -> float:
    """Return SSD / SD when primary, backup and SD use one speculator with one lookahead (Corollary 8).

    Never below 1, and above 1 as soon as ``hit_rate`` and ``draft_latency`` are both positive. Raises
    PlanError.
    """
    p, t = probability("hit_rate", hit_rate), non_negative("draft_latency", draft_latency)
    return (1.0 + t) / (p * max(1.0, t) + (1.0 - p) * (1.0 + t))


def gain_bounds(hit_rate: float, tokens_ratio: float, sd_latency: float) -> tuple[float, float]:
    """Return the lower and upper bound of SSD / SD for a hidden draft and a free backup (Corollary 9).

    Holds for ``T_p < 1`` and ``T_b = 0``; ``tokens_ratio`` is E_hit / E_SD. The lower bound drops the
    tokens of missed rounds altogether, the upper one supposes E_hit >= E_miss. Raises PlanError.
    """
    p = probability("hit_rate", hit_rate)
    upper = (1.0 + non_negative("sd_latency", sd_latency)) * non_negative("tokens_ratio", tokens_ratio)
    return upper * p, upper


def critical_batch_size(
    hit_rate: float, tokens_hit: float, tokens_miss: float, primary_latency: float
) -> float:
    """Return b* (Theorem 17): below it the accurate slow backup wins, from it on the backup of no latency.

    ``tokens_miss`` belongs to the fast backup; with the slow one a missed round is worth ``tokens_hit``.
    ``math.inf`` when the slow backup always wins. The theorem uses one hit rate for both strategies and a
    latency that does not change with the batch, so b* is a starting value, not a verdict. Raises PlanError.
    """
    p = probability("hit_rate", hit_rate)
    slow = tokens("tokens_hit", tokens_hit)
    fast = p * slow + (1.0 - p) * tokens("tokens_miss", tokens_miss)
    t = non_negative("primary_latency", primary_latency)
    # A round of the slow strategy costs 1 + T_p (1 - p^b). Compare at both ends before solving for b.
    if t == 0.0 or p == 1.0 or slow / (1.0 + t) >= fast:
        return math.inf if slow >= fast else 1.0
    if p == 0.0:
        return 0.0
    return math.log(1.0 + 1.0 / t - slow / (t * fast)) / math.log(p)
