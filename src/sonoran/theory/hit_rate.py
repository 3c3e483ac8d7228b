"""Hit rate of a run whose rounds depend on where the previous speculation came from (SSD paper, Eq. 1)."""

from __future__ import annotations

from sonoran.errors import PlanError
from sonoran.theory.checks import non_negative, probability, tokens


def hit_rate_after(rounds: int, after_primary: float, after_backup: float) -> float:
    """Return the hit probability ``rounds`` rounds after one with hit probability ``after_primary`` (Eq. 1).

    ``after_primary`` and ``after_backup`` are the hit probabilities given the origin of the speculation
    that was verified. Raises PlanError.
    """
    if rounds < 0:
        raise PlanError(f"rounds must be >= 0, got {rounds!r}; nearest valid value: 0")
    p, b = probability("after_primary", after_primary), probability("after_backup", after_backup)
    d = p - b
    # Geometric sum; d = 1 means (1, 0): once hit, always hit.
    weight = float(rounds) if d == 1.0 else (1.0 - d**rounds) / (1.0 - d)
    return float(p * d**rounds + b * weight)


def hit_rate_limit(after_primary: float, after_backup: float) -> float:
    """Return the long-run hit rate ``p_b / (1 + p_b - p_p)`` (Eq. 1). Raises PlanError.

    With (1, 0) the first round decides; it starts from the primary, so the answer is 1.
    """
    p, b = probability("after_primary", after_primary), probability("after_backup", after_backup)
    if p == 1.0 and b == 0.0:
        return 1.0
    return b / (1.0 + b - p)


def break_even_hit_rate(
    sd_latency: float, tokens_hit: float, tokens_sd: float, tokens_miss: float | None = None
) -> float:
    """Return the hit rate above which SSD beats SD, for a hidden draft and a free backup.

    Solves ``p E_hit + (1 - p) E_miss = E_SD / (1 + T_SD)``. Without ``tokens_miss`` missed rounds count for
    nothing, and with ``tokens_hit == tokens_sd`` that is the renewal rule ``1 / (1 + T_SD)``. 0 when SSD
    always wins; a value above 1 when no hit rate is enough. Raises PlanError.
    """
    hit, sd = tokens("tokens_hit", tokens_hit), tokens("tokens_sd", tokens_sd)
    miss = 0.0 if tokens_miss is None else tokens("tokens_miss", tokens_miss)
    needed = sd / (1.0 + non_negative("sd_latency", sd_latency))
    if miss >= needed:
        return 0.0
    if hit <= miss:
        raise PlanError(f"tokens_hit ({hit!r}) must exceed tokens_miss ({miss!r}) for a break-even to exist")
    return (needed - miss) / (hit - miss)
