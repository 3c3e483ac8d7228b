"""Range checks shared by the formulas: impossible input is a PlanError that shows the value."""

from __future__ import annotations

import math

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
