"""What is counted and timed, per sequence and in total, with vLLM's names and definitions.

Everything is counted after truncation: tokens behind a stop string or an end token count for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sonoran.engine.cache_stats import CacheStats


@dataclass(slots=True)
class SpeculationStats:
    """Counters of verifications that had a speculation; rounds with K = 0 are not among them.

    *Proposed* tokens were sent to the target; *verified* ones were decided on (accepted, or the first
    rejected one of a round); *accepted* ones were emitted; *emitted* counts the bonus token as well.
    """

    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_verified_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_emitted_tokens: int = 0
    proposed_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    histogram_by_length: dict[int, list[int]] = field(default_factory=dict)

    def record(self, proposed: int, accepted: int, emitted: int) -> None:
        """Count one verification of `proposed` draft tokens.

        `emitted` tokens are left after truncation, of at most ``accepted + 1`` that the verification yielded.
        """
        cut = emitted <= accepted
        kept = min(accepted, emitted)
        self.num_spec_steps += 1
        self.num_draft_tokens += proposed
        self.num_verified_draft_tokens += kept if cut or kept == proposed else kept + 1
        self.num_accepted_draft_tokens += kept
        self.num_emitted_tokens += emitted
        self._grow(proposed)
        for position in range(proposed):
            self.proposed_per_position[position] += 1
        for position in range(kept):
            self.accepted_per_position[position] += 1
        self.histogram_by_length.setdefault(proposed, [0] * (proposed + 1))[kept] += 1

    def add(self, other: SpeculationStats) -> None:
        """Add the counters of `other` to these."""
        self.num_spec_steps += other.num_spec_steps
        self.num_draft_tokens += other.num_draft_tokens
        self.num_verified_draft_tokens += other.num_verified_draft_tokens
        self.num_accepted_draft_tokens += other.num_accepted_draft_tokens
        self.num_emitted_tokens += other.num_emitted_tokens
        self._grow(len(other.accepted_per_position))
        for position, count in enumerate(other.accepted_per_position):
            self.accepted_per_position[position] += count
            self.proposed_per_position[position] += other.proposed_per_position[position]
        for length, counts in other.histogram_by_length.items():
            mine = self.histogram_by_length.setdefault(length, [0] * (length + 1))
            for accepted, count in enumerate(counts):
                mine[accepted] += count

    def _grow(self, length: int) -> None:
        for counts in (self.proposed_per_position, self.accepted_per_position):
            counts.extend([0] * (length - len(counts)))

    @property
    def acceptance_rate(self) -> float:
        """Accepted / proposed draft tokens (vLLM's ``draft_acceptance_rate``)."""
        return self.num_accepted_draft_tokens / max(1, self.num_draft_tokens)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens emitted per verification, bonus included: ``1 + accepted / steps`` less what was cut."""
        return self.num_emitted_tokens / max(1, self.num_spec_steps)

    @property
    def histogram(self) -> list[int]:
        """Number of verifications that accepted exactly j draft tokens, j from 0."""
        total = [0] * (len(self.accepted_per_position) + 1)
        for counts in self.histogram_by_length.values():
            for accepted, count in enumerate(counts):
                total[accepted] += count
        return total

    def as_dict(self, num_spec_tokens: int) -> dict[str, Any]:
        """Return the shape of vLLM's ``metrics.speculative_decoding``; `num_spec_tokens` is K."""
        return {
            "mean_acceptance_length": self.mean_acceptance_length,
            "draft_acceptance_rate": self.acceptance_rate,
            "acceptance_histogram": self.histogram,
            "acceptance_histogram_by_draft_length": {
                str(length): counts for length, counts in sorted(self.histogram_by_length.items())
            },
            "num_spec_steps": self.num_spec_steps,
            "num_accepted_draft_tokens": self.num_accepted_draft_tokens,
            "num_draft_tokens": self.num_draft_tokens,
            "num_verified_draft_tokens": self.num_verified_draft_tokens,
            "num_emitted_tokens": self.num_emitted_tokens,
            "num_spec_tokens": num_spec_tokens,
            "accepted_per_position": list(self.accepted_per_position),
            "proposed_per_position": list(self.proposed_per_position),
        }


@dataclass(slots=True)
class Times:
    """Seconds of wall time by what they went into."""

    draft: float = 0.0
    verification: float = 0.0  # the target's forward passes, those over prompts included
    sampling: float = 0.0
    rest: float = 0.0

    def add(self, other: Times) -> None:
        """Add the times of `other` to these."""
        self.draft += other.draft
        self.verification += other.verification
        self.sampling += other.sampling
        self.rest += other.rest

    @property
    def total(self) -> float:
        """All of it."""
        return self.draft + self.verification + self.sampling + self.rest

    def as_dict(self) -> dict[str, float]:
        """Return seconds by name, and their sum."""
        names = ("draft", "verification", "sampling", "rest")
        parts: dict[str, float] = {name: getattr(self, name) for name in names}
        return {**parts, "total": sum(parts.values())}


@dataclass(slots=True)
class SequenceStats:
    """Counters of one sequence. `times` sums the rounds it took part in; a batch shares its rounds."""

    speculation: SpeculationStats = field(default_factory=SpeculationStats)
    cache: CacheStats = field(default_factory=CacheStats)
    times: Times = field(default_factory=Times)
    num_rounds: int = 0
    per_step_drafted: list[int] = field(default_factory=list)
    per_step_accepted: list[int] = field(default_factory=list)
    started: float | None = None  # seconds on the engine's clock
    first_token: float | None = None
    finished: float | None = None

    def record(self, proposed: int, accepted: int, emitted: int) -> None:
        """Count one verification with a speculation."""
        self.speculation.record(proposed, accepted, emitted)
        self.per_step_drafted.append(proposed)
        self.per_step_accepted.append(min(accepted, emitted))


@dataclass(slots=True)
class EngineStats:
    """Totals since the engine was made."""

    speculation: SpeculationStats = field(default_factory=SpeculationStats)
    cache: CacheStats = field(default_factory=CacheStats)
    times: Times = field(default_factory=Times)
    num_rounds: int = 0
    num_rows: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_requests: int = 0
    num_cancelled: int = 0

    def as_dict(self, num_spec_tokens: int) -> dict[str, Any]:
        """Return all totals; ``speculative_decoding`` is there once something was verified."""
        totals: dict[str, Any] = {
            "num_requests": self.num_requests,
            "num_cancelled": self.num_cancelled,
            "num_rounds": self.num_rounds,
            "num_rows": self.num_rows,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "num_generated_tokens": self.num_generated_tokens,
            "time_s": self.times.as_dict(),
        }
        cache = self.cache.as_dict()
        if self.speculation.num_spec_steps or cache:
            totals["speculative_decoding"] = {**self.speculation.as_dict(num_spec_tokens), **cache}
        return totals
