"""How often draft tokens are accepted and where the bonus token ranks: the chance in a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

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
    """Acceptance by position, and rank laws of the bonus token.

    ``acceptance[i]`` is the probability that token i + 1 is accepted given that all before were; the last entry
    holds for every position beyond. ``after_miss`` is the same for speculations that replace a missed one
    (default: ``acceptance``), ``synchronous`` for SD, which meets both (default: ``acceptance``), ``ngram`` for
    n-gram proposals. ``rejected_cdf[F]`` is the probability that the bonus token after a rejection is among the
    first F candidates, ``accepted_cdf[F]`` the same after K accepted tokens; ``*_after_miss`` hold when a backup
    was verified. ``hits``, if given, are the hit rates after a cached speculation and after a backup, instead of what
    these laws say for a fan-out list. Raises PlanError.
    """

    acceptance: tuple[float, ...]
    rejected_cdf: Floats = field(repr=False)
    accepted_cdf: Floats = field(repr=False)
    after_miss: tuple[float, ...] | None = None
    synchronous: tuple[float, ...] | None = None
    ngram: tuple[float, ...] = (0.0,)
    rejected_cdf_after_miss: Floats | None = field(default=None, repr=False)
    accepted_cdf_after_miss: Floats | None = field(default=None, repr=False)
    hits: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name in ("acceptance", "after_miss", "synchronous", "ngram"):
            rates = getattr(self, name)
            if rates is not None:
                if not rates:
                    raise PlanError(f"{name} needs at least one rate")
                object.__setattr__(self, name, tuple(probability(name, rate) for rate in rates))
        for name in (
            "rejected_cdf", "accepted_cdf", "rejected_cdf_after_miss", "accepted_cdf_after_miss"
        ):  # fmt: skip
            cdf = getattr(self, name)
            if cdf is not None:
                object.__setattr__(self, name, _check_cdf(name, cdf))

    @classmethod
    def power_law(
        cls,
        acceptance: Sequence[float],
        exponent: float,
        *,
        after_miss: Sequence[float] | None = None,
        synchronous: Sequence[float] | None = None,
    ) -> Behaviour:
        """Build with one r-power-law for all ranks (SSD paper, Definition 11), made concave. Raises PlanError."""
        if not exponent > 0.0:
            raise PlanError(f"the power-law exponent must be positive, got {exponent!r}")
        cdf = concave_majorant(power_law_cdf(exponent, MAX_RANK))
        return cls(
            tuple(acceptance),
            cdf,
            cdf,
            None if after_miss is None else tuple(after_miss),
            None if synchronous is None else tuple(synchronous),
        )

    def rates(self, origin: Origin) -> tuple[float, ...]:
        """Return the acceptance by position of a speculation of that origin; random tokens are never accepted."""
        if origin == "primary":
            return self.acceptance
        if origin == "draft":
            return self.after_miss or self.acceptance
        return self.ngram if origin == "ngram" else (0.0,)

    def cdfs(self, origin: Origin) -> tuple[Floats, Floats]:
        """Return the rank laws (after a rejection, after K accepted) when that origin was verified."""
        if origin == "primary":
            return self.rejected_cdf, self.accepted_cdf
        rejected, accepted = self.rejected_cdf_after_miss, self.accepted_cdf_after_miss
        return (
            self.rejected_cdf if rejected is None else rejected,
            self.accepted_cdf if accepted is None else accepted,
        )

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
        rejected, accepted = self.cdfs(origin)
        return expected_hit_rate(fan_out, self.lengths(origin, k), [rejected] * k + [accepted])

    def stretched(self, power: float) -> Behaviour:
        """Return the same with every acceptance rate raised to ``power``: above 1 harder text, below easier."""
        return replace(
            self,
            acceptance=stretch(self.acceptance, power),
            after_miss=None if self.after_miss is None else stretch(self.after_miss, power),
            synchronous=None if self.synchronous is None else stretch(self.synchronous, power),
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


def exponent_for_hit_rate(hit_rate: float, fan_out: int) -> float:
    """Return r with ``1 - F^(-r)`` equal to the hit rate at a uniform fan-out F >= 2. Raises PlanError."""
    p = probability("hit_rate", hit_rate)
    if fan_out < 2 or not 0.0 < p < 1.0:
        raise PlanError(f"a power law needs a fan-out >= 2 and a hit rate inside (0, 1): {fan_out!r}, {p!r}")
    return -float(np.log(1.0 - p) / np.log(fan_out))


def _check_cdf(name: str, cdf: Sequence[float] | Floats) -> Floats:
    values = np.asarray(cdf, np.float64)
    if values.ndim != 1 or len(values) < 2 or values[0] != 0.0:
        raise PlanError(f"{name} must start with h(0) = 0 and have h(1), h(2), ...")
    if np.any(np.diff(values) < -1e-12) or values[-1] > 1.0 + 1e-9:
        raise PlanError(f"{name} must grow and stay below 1, got {values.tolist()!r}")
    return np.minimum(values, 1.0)
