"""What is counted about SSD on the target's side: hits, what they are worth, and what waiting for them costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from sonoran.types import Origin

LONG_WAIT_S = 1e-3
"""Waiting longer than this for a reply is counted: on a hit the draft should never be waited for."""


@dataclass(slots=True)
class Waits:
    """Times that the target waited for a reply, and how long those rounds were in all, in seconds."""

    count: int = 0
    total_s: float = 0.0
    max_s: float = 0.0
    long: int = 0
    ended_total_s: float = 0.0  # waiting in rounds whose end is known
    rounds_s: float = 0.0  # length of those rounds

    def add(self, waited_s: float) -> None:
        """Count one wait."""
        self.count += 1
        self.total_s += waited_s
        self.max_s = max(self.max_s, waited_s)
        self.long += waited_s > LONG_WAIT_S

    def end(self, waited_s: float, round_s: float) -> None:
        """Note how long the round of a wait was."""
        self.ended_total_s += waited_s
        self.rounds_s += round_s

    def as_dict(self) -> dict[str, float]:
        """Return milliseconds, and the share of the round that was waiting."""
        return {
            "rounds": self.count,
            "total_ms": 1e3 * self.total_s,
            "mean_ms": 1e3 * self.total_s / max(1, self.count),
            "max_ms": 1e3 * self.max_s,
            "share_of_round": self.ended_total_s / self.rounds_s if self.rounds_s else 0.0,
            "over_1_ms": self.long,
        }


@dataclass(slots=True)
class Worth:
    """Verifications of speculations of one kind, and the tokens that they emitted, bonus included."""

    verifications: int = 0
    tokens: int = 0

    @property
    def tokens_per_round(self) -> float:
        """Tokens emitted per verification."""
        return self.tokens / max(1, self.verifications)


@dataclass(slots=True)
class SsdStats:
    """Totals since the drafter was made. A *hit* is an answer from the cache (origin ``primary``).

    A round counts as hit when every sequence in it hit. What a speculation yielded is known one round later, so
    the last one of each sequence is missing in the tokens per round.
    """

    rounds: int = 0  # asked for
    rounds_without_worker: int = 0
    rounds_without_reply: int = 0
    answers: dict[Origin, int] = field(default_factory=dict)
    lookups: dict[Origin, list[int]] = field(default_factory=dict)  # by origin before: hits, all
    worth: dict[Origin, Worth] = field(default_factory=dict)
    hit_waits: Waits = field(default_factory=Waits)
    miss_waits: Waits = field(default_factory=Waits)
    hidden_ms: float = 0.0
    exposed_ms: float = 0.0
    fan_out: dict[str, list[int]] = field(default_factory=dict)
    prefills: int = 0
    unknown: int = 0  # answers that a sequence has to be told again
    garbage: int = 0

    def answered(self, origin: Origin, before: Origin | None, fan_out: list[int]) -> None:
        """Count an answer; ``before`` is the origin of the speculation whose outcome was looked up."""
        self.answers[origin] = self.answers.get(origin, 0) + 1
        if before is None:
            return
        hits = self.lookups.setdefault(before, [0, 0])
        hits[0] += origin == "primary"
        hits[1] += 1
        if fan_out:
            self.fan_out["primary" if before == "primary" else "backup"] = fan_out

    def verified(self, origin: Origin, emitted: int) -> None:
        """Count what a speculation yielded."""
        worth = self.worth.setdefault(origin, Worth())
        worth.verifications += 1
        worth.tokens += emitted

    def worked(self, hidden_ms: float, exposed_ms: float) -> bool:
        """Add what a reply says of the draft's work; False when that cannot be."""
        sound = all(math.isfinite(ms) and ms >= 0.0 for ms in (hidden_ms, exposed_ms))
        if sound:
            self.hidden_ms += hidden_ms
            self.exposed_ms += exposed_ms
        return sound

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        hits, total = self.answers.get("primary", 0), sum(self.answers.values())
        miss = Worth()
        for origin, worth in self.worth.items():
            if origin != "primary":
                miss.verifications += worth.verifications
                miss.tokens += worth.tokens
        return {
            "rounds": self.rounds,
            "rounds_without_worker": self.rounds_without_worker,
            "rounds_without_reply": self.rounds_without_reply,
            "answers_by_origin": dict(self.answers),
            "hit_rate": hits / max(1, total),
            "hit_rate_after": {
                origin: {"hits": hits, "lookups": lookups, "rate": hits / max(1, lookups)}
                for origin, (hits, lookups) in self.lookups.items()
            },
            "tokens_per_round": {
                "hit": self.worth.get("primary", Worth()).tokens_per_round,
                "miss": miss.tokens_per_round,
                **{f"{origin}": worth.tokens_per_round for origin, worth in self.worth.items()},
            },
            "wait": {"hit": self.hit_waits.as_dict(), "miss": self.miss_waits.as_dict()},
            "rounds_waited_over_1_ms": self.hit_waits.long + self.miss_waits.long,
            "draft_hidden_ms": self.hidden_ms,
            "draft_exposed_ms": self.exposed_ms,
            "fan_out": {kind: list(values) for kind, values in self.fan_out.items()},
            "prefills": self.prefills,
            "unknown_sequences": self.unknown,
            "garbage_answers": self.garbage,
        }
