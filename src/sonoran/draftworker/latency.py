"""How long a draft pass of n rows takes: measured as it goes."""

from __future__ import annotations

import bisect


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
