"""Sums over the rounds of a simulated run, and the averages made from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from sonoran.simulate.plan import RoundResult


def _by_origin() -> dict[bool, int]:
    return {True: 0, False: 0}


@dataclass(slots=True)
class Tally:
    """Sums in tokens and ms; dicts are by "a cached speculation was verified" (primary) or not (backup)."""

    rounds: int = 0
    tokens: int = 0
    accepted: int = 0
    proposed: int = 0
    elapsed: float = 0.0
    verify: float = 0.0
    wait: float = 0.0
    draft: float = 0.0
    cut: int = 0
    hits: dict[bool, int] = field(default_factory=_by_origin)
    emitted: dict[bool, int] = field(default_factory=_by_origin)
    verified: dict[bool, int] = field(default_factory=_by_origin)

    def result(self, batch: int) -> RoundResult:
        """Return the averages of a run of SSD with ``batch`` rows."""
        n, hits = self.rounds, sum(self.hits.values())
        return RoundResult(
            "ssd",
            tokens_per_s=1e3 * self.tokens / self.elapsed,
            tokens_per_round=self.tokens / (n * batch),
            round_ms=self.elapsed / n,
            verify_ms=self.verify / n,
            wait_ms=self.wait / n,
            rounds=n,
            acceptance_rate=self.accepted / self.proposed if self.proposed else None,
            hit_rate=hits / (n * batch),
            hit_rate_after_primary=_share(self.hits[True], self.verified[True]),
            hit_rate_after_backup=_share(self.hits[False], self.verified[False]),
            tokens_hit=_share(self.emitted[True], self.verified[True]),
            tokens_miss=_share(self.emitted[False], self.verified[False]),
            cut_rate=_share(self.cut, hits),
            draft_round_ms=self.draft / n,
        )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
