"""Speed-up of SSD and SD over autoregressive decoding (SSD paper, sections 3.2 and 4.3, appendix A).

All latencies are relative: one verification pass of the target is 1. All speed-ups are against AR, which
emits one token per pass. ``tokens_*`` are expected tokens of a round, accepted plus bonus, hence at least
1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sonoran.errors import PlanError


def probability(name: str, value: float) -> float:
    """Return ``value`` if it lies in [0, 1]; otherwise raise PlanError with the nearest valid value."""
    if not 0.0 <= value <= 1.0:
        raise PlanError(f"{name} is a probability, got {value!r}; nearest valid value: {_clamp(value, 1.0)}")
    return float(value)


def non_negative(name: str, value: float) -> float:
    """Return ``value`` if it is finite and >= 0; otherwise raise PlanError."""
    if not (math.isfinite(value) and value >= 0.0):
        raise PlanError(f"{name} must be finite and >= 0, got {value!r}; nearest valid value: 0")
    return float(value)


def tokens(name: str, value: float) -> float:
    """Return ``value`` if it can be tokens per round (finite, >= 1: the bonus token always comes)."""
    if not (math.isfinite(value) and value >= 1.0):
        raise PlanError(f"{name} counts the bonus token, so it is at least 1; got {value!r}")
    return float(value)


def lookahead(value: int) -> int:
    """Return ``value`` if it is a valid K (an integer >= 0); otherwise raise PlanError."""
    if isinstance(value, bool) or value != int(value) or value < 0:
        raise PlanError(f"the number of speculative tokens must be an integer >= 0, got {value!r}")
    return int(value)


def _clamp(value: float, upper: float) -> float:
    return 0.0 if not value > 0.0 else min(value, upper)


def hit_rate_limit(after_primary: float, after_backup: float) -> float:
    """Return the long-run hit rate ``p_b / (1 + p_b - p_p)`` (Eq. 1). Raises PlanError.

    With (1, 0) the first round decides; it starts from the primary, so the answer is 1.
    """
    p, b = probability("after_primary", after_primary), probability("after_backup", after_backup)
    if p == 1.0 and b == 0.0:
        return 1.0
    return b / (1.0 + b - p)


def tokens_per_round(acceptance: float, num_speculative_tokens: int) -> float:
    """Return the expected tokens of a round, bonus included, under a constant acceptance rate a.

    ``(1 - a^(K+1)) / (1 - a)`` (Leviathan et al.), K + 1 for a = 1. Raises PlanError.
    """
    a, k = probability("acceptance", acceptance), lookahead(num_speculative_tokens)
    return math.fsum(a**i for i in range(k + 1))


def tokens_from_lengths(lengths: Sequence[float]) -> float:
    """Return the mean tokens of a round from a histogram of accepted lengths 0..K (counts or probabilities).

    Raises PlanError for an empty or negative histogram.
    """
    total = math.fsum(lengths)
    if not lengths or total <= 0.0 or min(lengths) < 0.0:
        raise PlanError(
            f"accepted-length histogram must be non-negative with a positive sum, got {list(lengths)!r}"
        )
    return math.fsum((k + 1) * x for k, x in enumerate(lengths)) / total


def draft_round_time(
    service: float, trunk_pass: float, tree_step: float, num_speculative_tokens: int
) -> float:
    """Return the time of a draft round: answering, the trunk pass, then K tree steps.

    Any one unit. Raises PlanError.
    """
    k = lookahead(num_speculative_tokens)
    fixed = non_negative("service", service) + non_negative("trunk_pass", trunk_pass)
    return fixed + k * non_negative("tree_step", tree_step)


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


def critical_batch_size(
    hit_rate: float, tokens_hit: float, tokens_miss: float, primary_latency: float
) -> float:
    """Return b* (Theorem 17): below it the accurate slow backup wins, from it on the backup of no latency.

    ``tokens_miss`` belongs to the fast backup; with the slow one a missed round is worth ``tokens_hit``.
    ``math.inf`` when the slow backup always wins. The theorem assumes T_p < 1; for a draft that is longer than a
    verification this is where Corollary 16 itself crosses, whose rounds with all hits then last T_p. Both use one hit
    rate for both strategies and a latency that does not change with the batch, so b* is a starting value, not a verdict.
    Raises PlanError.
    """
    p = probability("hit_rate", hit_rate)
    slow = tokens("tokens_hit", tokens_hit)
    fast = p * slow + (1.0 - p) * tokens("tokens_miss", tokens_miss)
    t = non_negative("primary_latency", primary_latency)
    if t == 0.0 or p == 1.0:
        return math.inf if slow >= fast else 1.0
    # With q = p^b, a round costs q m + (1 - q)(1 + T_p) with the slow backup and q m + 1 - q with the fast one,
    # m = max(1, T_p). The slow one wins while q is above the q of equal speed.
    longest = max(1.0, t)
    q = (fast * (1.0 + t) - slow) / (slow * (longest - 1.0) + fast * (1.0 + t - longest))
    if q <= 0.0:
        return math.inf
    return 0.0 if p == 0.0 else math.log(q) / math.log(p)
