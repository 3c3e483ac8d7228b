"""Milliseconds of a forward pass by its number of rows, from a few measured points."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sonoran.errors import PlanError, shown

LARGEST = 1e12
"""Rows or milliseconds: decades; sums of them stay numbers."""


class RunningLatency:
    """Running mean of the pass time in ms by number of rows; calling it interpolates between what was seen."""

    def __init__(self, weight: float = 0.1) -> None:
        self._weight = weight
        self._points: list[tuple[float, float]] = []  # (rows, mean), ascending

    @property
    def known(self) -> bool:
        """Whether two different numbers of rows were seen, so that a slope can be told."""
        return len(self._points) >= 2

    @property
    def largest(self) -> int:
        """Rows of the largest pass that was seen, 0 before any."""
        return int(self._points[-1][0]) if self._points else 0

    def observe(self, rows: int, milliseconds: float) -> None:
        """Count one pass."""
        at = bisect.bisect_left(self._points, (rows, -math.inf))
        if at < len(self._points) and self._points[at][0] == rows:
            mean = self._points[at][1]
            self._points[at] = (rows, mean + self._weight * (milliseconds - mean))
        else:
            self._points.insert(at, (rows, milliseconds))

    def __call__(self, rows: int) -> float:
        """Return the expected time of a pass in ms, 0 if none was seen; beyond the largest, in proportion to the rows."""
        if not self._points:
            return 0.0
        largest, last = self._points[-1]
        return last * rows / largest if rows > largest else interpolate(self._points, rows)

    def as_dict(self) -> dict[str, float]:
        """Return the means by number of rows."""
        return {f"{rows:.0f}": mean for rows, mean in self._points}


def interpolate(points: Sequence[tuple[float, float]], rows: float) -> float:
    """Return ms at ``rows`` between ascending points ``(rows, ms)``, at least one; flat outside of them."""
    at = bisect.bisect_left(points, (rows, -math.inf))
    if at == 0 or at == len(points):
        return points[min(at, len(points) - 1)][1]
    (low, a), (high, b) = points[at - 1], points[at]
    return a + (b - a) * (rows - low) / (high - low)


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
            if not (1 <= rows <= LARGEST and 1 / LARGEST <= ms <= LARGEST):
                raise PlanError(
                    f"a latency must be rows >= 1 and ms > 0, neither beyond {LARGEST:g}; got {rows!r} rows, {ms!r} ms"
                )
        if len({rows for rows, _ in points}) < len(points):
            raise PlanError(f"a latency curve has two values for the same rows: {shown(points)}")

    @classmethod
    def of(cls, points: Mapping[str | int, float] | Iterable[tuple[float, float]]) -> LatencyCurve:
        """Build from ``{rows: ms}`` (keys may be text, as in JSON) or from pairs. Raises PlanError."""
        try:
            pairs = points.items() if isinstance(points, Mapping) else points
            return cls(tuple((float(rows), float(ms)) for rows, ms in pairs))
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, PlanError):
                raise
            raise PlanError(f"a latency curve must map rows to milliseconds, got {shown(points)}") from error

    def __call__(self, rows: float) -> float:
        """Return ms of a pass of ``rows`` rows; 0 for no rows."""
        if rows <= 0:
            return 0.0
        last = self.points[-1]
        if rows > last[0]:
            return last[1] + self._last_slope() * (rows - last[0])
        return interpolate(self.points, rows)

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
