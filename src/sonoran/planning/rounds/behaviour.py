"""How often draft tokens are accepted and where the bonus token ranks: the chance in a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sonoran.errors import PlanError
from sonoran.theory.distributions import (
    Floats,
    concave_majorant,
    expected_hit_rate,
    length_distribution,
    power_law_cdf,
)
from sonoran.theory.speedup import lookahead, probability, tokens_from_lengths
from sonoran.types import Origin

MAX_RANK = 64


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Acceptance by position, and how the bonus token ranks among the draft's candidates.

    ``acceptance[i]`` is the probability that token i + 1 is accepted given that all before were; the last entry
    holds for every position beyond. ``after_miss`` is the same for speculations that replace a missed one
    (default: ``acceptance``), ``synchronous`` for SD, which meets both (default: ``acceptance``).
    ``rejected_cdf[F]`` is the probability that the bonus token after a rejection is among the first F candidates,
    ``accepted_cdf[F]`` the same after K accepted tokens. ``hits``, if given, are the hit rates after a cached
    speculation and after a backup, instead of what the ranks say for a fan-out list. Raises PlanError.
    """

    acceptance: tuple[float, ...]
    rejected_cdf: Floats = field(repr=False)
    accepted_cdf: Floats = field(repr=False)
    after_miss: tuple[float, ...] | None = None
    synchronous: tuple[float, ...] | None = None
    hits: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name in ("acceptance", "after_miss", "synchronous"):
            rates = getattr(self, name)
            if rates is not None:
                if not rates:
                    raise PlanError(f"{name} needs at least one rate")
                object.__setattr__(self, name, tuple(probability(name, rate) for rate in rates))
        for name in ("rejected_cdf", "accepted_cdf"):
            object.__setattr__(self, name, _check_cdf(name, getattr(self, name)))

    @classmethod
    def power_law(cls, acceptance: Sequence[float], exponent: float) -> Behaviour:
        """Build with one r-power-law for all ranks (SSD paper, Definition 11), made concave. Raises PlanError."""
        if not exponent > 0.0:
            raise PlanError(f"the power-law exponent must be positive, got {exponent!r}")
        cdf = concave_majorant(power_law_cdf(exponent, MAX_RANK))
        return cls(tuple(acceptance), cdf, cdf)

    def rates(self, origin: Origin) -> tuple[float, ...]:
        """Return the acceptance by position of a speculation of that origin; 0 for tokens that no draft chose."""
        if origin == "primary":
            return self.acceptance
        return self.after_miss or self.acceptance if origin == "draft" else (0.0,)

    def lengths(self, origin: Origin, num_speculative_tokens: int) -> list[float]:
        """Return the probabilities of 0..K accepted tokens."""
        return length_distribution(self.rates(origin), num_speculative_tokens)

    def synchronous_lengths(self, num_speculative_tokens: int) -> list[float]:
        """Return the probabilities of 0..K accepted tokens under SD."""
        return length_distribution(self.synchronous or self.acceptance, num_speculative_tokens)

    def hit_rate(self, origin: Origin, fan_out: Sequence[int]) -> float:
        """Return the hit probability of a fan-out list F_0..F_K (Theorem 18)."""
        if self.hits is not None:
            return self.hits[0 if origin == "primary" else 1]
        k = len(fan_out) - 1
        return expected_hit_rate(
            fan_out, self.lengths(origin, k), [self.rejected_cdf] * k + [self.accepted_cdf]
        )


def stretch(rates: Sequence[float], power: float) -> tuple[float, ...]:
    """Return every rate raised to ``power`` >= 0."""
    if not power >= 0.0:
        raise PlanError(f"the power of acceptance rates must be >= 0, got {power!r}")
    return tuple(rate**power for rate in rates)


def power_for_tokens(rates: Sequence[float], num_speculative_tokens: int, tokens: float) -> float:
    """Return the power with which the rates give ``tokens`` per round at K. Raises PlanError if none does."""
    k = lookahead(num_speculative_tokens)
    if not 1.0 < tokens < k + 1.0:
        raise PlanError(f"{tokens!r} tokens per round are impossible with K = {k}: between 1 and {k + 1}")
    low, high = 0.0, 1.0

    def emitted(power: float) -> float:
        return tokens_from_lengths(length_distribution(stretch(rates, power), k))

    while emitted(high) > tokens:
        high *= 2.0
        if high > 1e6:
            raise PlanError(f"no power of the acceptance rates gives {tokens!r} tokens per round")
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if emitted(middle) > tokens else (low, middle)
    return 0.5 * (low + high)


def _check_cdf(name: str, cdf: Sequence[float] | Floats) -> Floats:
    values = np.asarray(cdf, np.float64)
    if values.ndim != 1 or len(values) < 2 or values[0] != 0.0:
        raise PlanError(f"{name} must start with h(0) = 0 and have h(1), h(2), ...")
    if np.any(np.diff(values) < -1e-12) or values[-1] > 1.0 + 1e-9:
        raise PlanError(f"{name} must grow and stay below 1, got {values.tolist()!r}")
    return np.minimum(values, 1.0)
