"""Milliseconds of a forward pass by its number of rows, from a few measured points."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sonoran.errors import PlanError


class RowLatency:
    """Running mean of the pass time in ms by number of rows; calling it interpolates between what was seen."""

    def __init__(self, weight: float = 0.1) -> None:
        self._weight = weight
        self._means: dict[int, float] = {}

    @property
    def known(self) -> bool:
        """Whether two different numbers of rows were seen, so that a slope can be told."""
        return len(self._means) >= 2

    def observe(self, rows: int, milliseconds: float) -> None:
        """Count one pass."""
        mean = self._means.get(rows)
        self._means[rows] = milliseconds if mean is None else mean + self._weight * (milliseconds - mean)

    def __call__(self, rows: int) -> float:
        """Return the expected time of a pass in ms; beyond the largest seen, in proportion to the rows."""
        seen = sorted(self._means)
        if not seen:
            return 0.0
        at = bisect.bisect_left(seen, rows)
        if at == len(seen):
            return self._means[seen[-1]] * rows / seen[-1]
        if seen[at] == rows or at == 0:
            return self._means[seen[at]]
        low, high = seen[at - 1], seen[at]
        share = (rows - low) / (high - low)
        return self._means[low] + share * (self._means[high] - self._means[low])

    def as_dict(self) -> dict[str, float]:
        """Return the means by number of rows."""
        return {str(rows): self._means[rows] for rows in sorted(self._means)}


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """Piecewise linear between points ``(rows, ms)``; flat below the first, the last slope above the last.

    The slope above the last point is never negative. Raises PlanError.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        points = tuple(sorted((float(rows), float(ms)) for rows, ms in self.points))
        object.__setattr__(self, "points", points)
        if not points:
            raise PlanError("a latency curve needs at least one point (rows, ms)")
        for rows, ms in points:
            if not (math.isfinite(rows) and rows >= 1 and math.isfinite(ms) and ms > 0):
                raise PlanError(f"a latency must be rows >= 1 and ms > 0, got {rows!r} rows, {ms!r} ms")
        if len({rows for rows, _ in points}) < len(points):
            raise PlanError(f"a latency curve has two values for the same rows: {points!r}")

    @classmethod
    def of(cls, points: Mapping[str | int, float] | Iterable[tuple[float, float]]) -> LatencyCurve:
        """Build from ``{rows: ms}`` (keys may be text, as in JSON) or from pairs. Raises PlanError."""
        try:
            pairs = points.items() if isinstance(points, Mapping) else points
            return cls(tuple((float(rows), float(ms)) for rows, ms in pairs))
        except (TypeError, ValueError) as error:
            if isinstance(error, PlanError):
                raise
            raise PlanError(f"a latency curve must map rows to milliseconds, got {points!r}") from error

    def __call__(self, rows: float) -> float:
        """Return ms of a pass of ``rows`` rows; 0 for no rows."""
        if rows <= 0:
            return 0.0
        points = self.points
        at = bisect.bisect_left(points, (rows, -math.inf))
        if at == 0:
            return points[0][1]
        if at == len(points):
            return points[-1][1] + self._last_slope() * (rows - points[-1][0])
        (low, a), (high, b) = points[at - 1], points[at]
        return a + (b - a) * (rows - low) / (high - low)

    @property
    def largest(self) -> float:
        """Rows of the last point; above it the curve extrapolates."""
        return self.points[-1][0]

    def scaled(self, factor: float) -> LatencyCurve:
        """Return the curve with every time multiplied. Raises PlanError."""
        return LatencyCurve(tuple((rows, ms * factor) for rows, ms in self.points))

    def _last_slope(self) -> float:
        if len(self.points) < 2:
            return 0.0
        (low, a), (high, b) = self.points[-2:]
        return max(0.0, (b - a) / (high - low))
