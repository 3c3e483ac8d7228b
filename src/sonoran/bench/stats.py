"""Summaries of repeated measurements: median, extremes and spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sonoran.errors import ConfigError
from sonoran.planning.profile.profile import median_and_spread


@dataclass(frozen=True, slots=True)
class Summary:
    """Repeated measurements of one thing, in the unit of the measurements."""

    median: float
    min: float
    max: float
    spread: float  # interquartile range / median; 0 for a single measurement
    count: int


def summarize(values: Sequence[float]) -> Summary:
    """Summarise at least one measurement. Raises ConfigError for none."""
    if not values:
        raise ConfigError("nothing was measured; ask for at least one repeat")
    median, spread = median_and_spread(values)
    return Summary(median, min(values), max(values), spread, len(values))


def ratio(numerator: float, denominator: float) -> float | None:
    """Return the quotient, or None when there is nothing to divide by."""
    return numerator / denominator if denominator > 0 else None
