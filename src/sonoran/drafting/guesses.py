"""Guesses: which outcomes of a round to draft for, given how likely each is, and how many are worth it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sonoran.drafting.fan_out import Floats
from sonoran.errors import ConfigError

_SPREAD = 0.1  # of the length of a verification, relative, where two processes share memory


def likeliest(probabilities: Sequence[Sequence[Floats]], total: int) -> list[list[int]]:
    """Return F_0..F_K of each sequence: the ``total`` likeliest outcomes of all together, at least one of each.

    Fewer when there are fewer candidates. Raises ConfigError when there are fewer guesses than sequences.
    """
    if total < len(probabilities):
        raise ConfigError(f"{total} guesses are too few for {len(probabilities)} sequences")
    fan_out = [[0] * len(rows) for rows in probabilities]
    for sequence, k, _ in _ordered(probabilities)[:total]:
        fan_out[sequence][k] += 1
    return fan_out


@dataclass(frozen=True, slots=True)
class Prices:
    """What guesses cost and what misses cost, in ms of a round of the whole batch."""

    draft_round: Callable[[int], float]  # trunk pass and tree steps with that many branches
    verification_ms: float
    wait_ms: float  # for the backup, if any row misses
    loss_ms: float  # of each row that misses: what its backup is worth less than a hit


def worthwhile(probabilities: Sequence[Sequence[Floats]], prices: Prices, limit: int) -> int:
    """Return how many guesses make the expected round shortest: the longer of verification and drafting, and misses.

    This is Theorem 7 with the hit rate of this one round, and a verification whose length is not known exactly. At
    least one guess for each sequence, at most ``limit`` in all.
    """
    needed = len(probabilities)
    missing = [1.0] * needed
    best, least = needed, math.inf
    for count, (sequence, _, chance) in enumerate(_ordered(probabilities)[: max(limit, needed)], start=1):
        missing[sequence] = max(0.0, missing[sequence] - chance)
        if count < needed:
            continue
        waits = 1.0 - math.prod(1.0 - m for m in missing)
        length = _expected_longer(prices.verification_ms, prices.draft_round(count))
        cost = length + waits * prices.wait_ms + math.fsum(missing) * prices.loss_ms
        if cost < least:
            best, least = count, cost
    return best


def _ordered(probabilities: Sequence[Sequence[Floats]]) -> list[tuple[int, int, float]]:
    """Return (sequence, k, chance) of all candidates, likeliest first.

    Ahead of them all is, for each sequence, "all accepted, then the best candidate": so a draft that is right is
    always hit, however little it thinks of itself.
    """
    first, rest = [], []
    for sequence, rows in enumerate(probabilities):
        last = len(rows) - 1
        found = [(sequence, k, float(p)) for k, row in enumerate(rows) for p in row]
        at = next((i for i, (_, k, _) in enumerate(found) if k == last), 0)
        first += found[at : at + 1]
        rest += found[:at] + found[at + 1 :]
    return first + sorted(rest, key=lambda candidate: -candidate[2])


def _expected_longer(verification: float, draft: float) -> float:
    """Return E max(V, draft) for a normal V around ``verification``."""
    spread = _SPREAD * verification
    if spread <= 0.0:
        return max(verification, draft)
    z = (draft - verification) / spread
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return verification + spread * (density + z * 0.5 * (1.0 + math.erf(z / math.sqrt(2.0))))
