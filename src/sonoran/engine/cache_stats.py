"""What SSD's speculation cache is worth, per request and in total: hits, tokens per round, hidden time, waits.

Counted in the engine's thread when a verification is done, after truncation. What belongs to a round (waiting, draft
time) counts once per round in the totals, and for each request that took part in the round, like `Times`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sonoran.engine.drafters.base import DraftAnswer, DraftRound
from sonoran.types import Origin

LONG_WAIT_S = 1e-3
"""A round waited for the draft when the reply took longer than this; a message alone takes a fraction of it."""


@dataclass(slots=True)
class WaitStats:
    """Rounds of one kind: how many, how many waited for the draft, and seconds of waiting and in all."""

    rounds: int = 0
    waited: int = 0
    wait_s: float = 0.0
    longest_s: float = 0.0
    rounds_s: float = 0.0

    def record(self, wait_s: float, round_s: float) -> None:
        """Count one round."""
        self.rounds += 1
        self.waited += wait_s > LONG_WAIT_S
        self.wait_s += wait_s
        self.longest_s = max(self.longest_s, wait_s)
        self.rounds_s += round_s

    def add(self, other: WaitStats) -> None:
        """Add the rounds of `other`."""
        self.rounds += other.rounds
        self.waited += other.waited
        self.wait_s += other.wait_s
        self.longest_s = max(self.longest_s, other.longest_s)
        self.rounds_s += other.rounds_s

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; ``share_of_round`` is waiting / length of the rounds."""
        return {
            "num_rounds": self.rounds,
            "num_rounds_waited": self.waited,
            "wait_s": self.wait_s,
            "longest_wait_s": self.longest_s,
            "share_of_round": self.wait_s / self.rounds_s if self.rounds_s else 0.0,
        }


@dataclass(slots=True)
class CacheStats:
    """Counters of verifications whose speculation a draft worker answered with. Lists are ``[part, all]``."""

    hits: dict[Origin, list[int]] = field(default_factory=dict)  # by what was verified before: hits, lookups
    worth: dict[Origin, list[int]] = field(default_factory=dict)  # by origin: tokens emitted, verifications
    waits: dict[str, WaitStats] = field(default_factory=lambda: {"hit": WaitStats(), "miss": WaitStats()})
    hidden_s: float = 0.0
    exposed_s: float = 0.0
    fan_out: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def record_answer(self, answer: DraftAnswer, emitted: int) -> None:
        """Count a verification of what was answered, which emitted so many tokens after truncation."""
        before = answer.before or "none"
        lookups = self.hits.setdefault(before, [0, 0])
        lookups[0] += answer.origin == "primary"
        lookups[1] += 1
        worth = self.worth.setdefault(answer.origin, [0, 0])
        worth[0] += emitted
        worth[1] += 1
        if answer.fan_out:
            self.fan_out["primary" if before == "primary" else "backup"] = answer.fan_out

    def record_round(self, draft: DraftRound, round_s: float) -> None:
        """Count one question to the worker, and how long its round was in all."""
        self.waits["hit" if draft.hit else "miss"].record(draft.waited_s, round_s)
        self.hidden_s += draft.hidden_s
        self.exposed_s += draft.exposed_s

    def add(self, other: CacheStats) -> None:
        """Add the counters of `other`; its fan-out is the newer one."""
        for mine, theirs in ((self.hits, other.hits), (self.worth, other.worth)):
            for origin, (part, total) in theirs.items():
                counts = mine.setdefault(origin, [0, 0])
                counts[0] += part
                counts[1] += total
        for kind, waits in other.waits.items():
            self.waits[kind].add(waits)
        self.hidden_s += other.hidden_s
        self.exposed_s += other.exposed_s
        self.fan_out.update(other.fan_out)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; empty when no worker was ever asked."""
        if not any(waits.rounds for waits in self.waits.values()):
            return {}
        hits, lookups = (sum(counts[i] for counts in self.hits.values()) for i in (0, 1))
        missed = [counts for origin, counts in self.worth.items() if origin != "primary"]
        return {
            "num_cache_hits": hits,
            "num_cache_lookups": lookups,
            "cache_hit_rate": _ratio(hits, lookups),
            "cache_hits_by_previous_origin": {
                origin: {"hits": part, "lookups": total, "rate": part / total}
                for origin, (part, total) in self.hits.items()
            },
            "num_speculations_by_origin": {origin: total for origin, (_, total) in self.worth.items()},
            "tokens_per_round_on_hit": _ratio(*self.worth.get("primary", (0, 0))),
            "tokens_per_round_on_miss": _ratio(sum(m[0] for m in missed), sum(m[1] for m in missed)),
            "tokens_per_round_by_origin": {
                origin: tokens / total for origin, (tokens, total) in self.worth.items()
            },
            "draft_hidden_s": self.hidden_s,
            "draft_exposed_s": self.exposed_s,
            "draft_wait": {kind: waits.as_dict() for kind, waits in self.waits.items()},
            "fan_out": {kind: list(values) for kind, values in self.fan_out.items()},
        }


def _ratio(part: int, total: int) -> float | None:
    return part / total if total else None
