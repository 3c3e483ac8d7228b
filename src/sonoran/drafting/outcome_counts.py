"""The counters behind the outcome statistics: one vector per origin."""

from __future__ import annotations

import numpy as np

from sonoran.drafting.fan_out import Floats


class OutcomeCounts:
    """Faded counts of one origin; everything in one vector, so that fading and merging are one operation."""

    def __init__(self, max_tokens: int, max_rank: int) -> None:
        self.max_tokens, self.max_rank = max_tokens, max_rank
        self.vector = np.zeros(5 + 2 * max_tokens + 2 * (max_rank + 1))

    @property
    def totals(self) -> Floats:  # rounds, emitted tokens, lookups, hits, rounds in all (never faded)
        return self.vector[:5]

    @property
    def reached(self) -> Floats:  # [max_tokens]: token i + 1 was proposed and all before it were accepted
        return self.vector[5 : 5 + self.max_tokens]

    @property
    def passed(self) -> Floats:  # [max_tokens]: ... and it was accepted too
        return self.vector[5 + self.max_tokens : 5 + 2 * self.max_tokens]

    @property
    def ranks(self) -> Floats:  # [2, max_rank + 1]: k < K, k = K; the last column is "further down"
        return self.vector[5 + 2 * self.max_tokens :].reshape(2, self.max_rank + 1)
