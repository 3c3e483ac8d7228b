"""What is counted and timed, per sequence and in total, with vLLM's names and definitions.

Everything is counted after truncation: tokens behind a stop string or an end token count for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sonoran.engine.drafter import DraftAnswer, DraftRound
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
        if answer.origin != "copy":  # which is sent whatever the cache has
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
        missed = [counts for origin, counts in self.worth.items() if origin not in ("primary", "copy")]
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


@dataclass(slots=True)
class SpeculationStats:
    """Counters of verifications that had a speculation; rounds with K = 0 are not among them.

    *Proposed* tokens were sent to the target; *verified* ones were decided on (accepted, or the first
    rejected one of a round); *accepted* ones were emitted; *emitted* counts the bonus token as well.
    ``accepted_by_length[n][j]`` is the number of verifications of n proposed tokens that accepted j of them.
    """

    accepted_by_length: dict[int, list[int]] = field(default_factory=dict)
    num_verified_draft_tokens: int = 0
    num_emitted_tokens: int = 0

    def record(self, proposed: int, accepted: int, emitted: int) -> None:
        """Count one verification of `proposed` draft tokens.

        `emitted` tokens are left after truncation, of at most ``accepted + 1`` that the verification yielded.
        """
        cut = emitted <= accepted
        kept = min(accepted, emitted)
        self.accepted_by_length.setdefault(proposed, [0] * (proposed + 1))[kept] += 1
        self.num_verified_draft_tokens += kept if cut or kept == proposed else kept + 1
        self.num_emitted_tokens += emitted

    def add(self, other: SpeculationStats) -> None:
        """Add the counters of `other` to these."""
        for length, counts in other.accepted_by_length.items():
            mine = self.accepted_by_length.setdefault(length, [0] * (length + 1))
            for accepted, count in enumerate(counts):
                mine[accepted] += count
        self.num_verified_draft_tokens += other.num_verified_draft_tokens
        self.num_emitted_tokens += other.num_emitted_tokens

    @property
    def num_spec_steps(self) -> int:
        """Verifications."""
        return sum(sum(counts) for counts in self.accepted_by_length.values())

    @property
    def num_draft_tokens(self) -> int:
        """Proposed tokens."""
        return sum(length * sum(counts) for length, counts in self.accepted_by_length.items())

    @property
    def num_accepted_draft_tokens(self) -> int:
        """Accepted tokens."""
        return sum(sum(j * n for j, n in enumerate(counts)) for counts in self.accepted_by_length.values())

    @property
    def acceptance_rate(self) -> float:
        """Accepted / proposed draft tokens (vLLM's ``draft_acceptance_rate``)."""
        return self.num_accepted_draft_tokens / max(1, self.num_draft_tokens)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens emitted per verification, bonus included: ``1 + accepted / steps`` less what was cut."""
        return self.num_emitted_tokens / max(1, self.num_spec_steps)

    def histogram(self, num_spec_tokens: int) -> list[int]:
        """Return the number of verifications that accepted exactly j draft tokens, for j = 0..K."""
        total = [0] * (num_spec_tokens + 1)
        for counts in self.accepted_by_length.values():
            for accepted, count in enumerate(counts):
                total[accepted] += count
        return total

    def proposed_per_position(self, num_spec_tokens: int) -> list[int]:
        """Return how often a token was proposed at each of the K positions."""
        lengths = [(length, sum(counts)) for length, counts in self.accepted_by_length.items()]
        return [sum(n for length, n in lengths if length > i) for i in range(num_spec_tokens)]

    def accepted_per_position(self, num_spec_tokens: int) -> list[int]:
        """Return how often the token proposed at each of the K positions was accepted."""
        histogram = self.histogram(num_spec_tokens)
        return [sum(histogram[i + 1 :]) for i in range(num_spec_tokens)]

    def as_dict(self, num_spec_tokens: int) -> dict[str, Any]:
        """Return the shape of vLLM's ``metrics.speculative_decoding``; `num_spec_tokens` is K of the engine.

        Lists have K + 1 and K entries whatever lengths were proposed, which never exceed K.
        """
        return {
            "mean_acceptance_length": self.mean_acceptance_length,
            "draft_acceptance_rate": self.acceptance_rate,
            "acceptance_histogram": self.histogram(num_spec_tokens),
            "acceptance_histogram_by_draft_length": {
                str(length): list(counts) for length, counts in sorted(self.accepted_by_length.items())
            },
            "num_spec_steps": self.num_spec_steps,
            "num_accepted_draft_tokens": self.num_accepted_draft_tokens,
            "num_draft_tokens": self.num_draft_tokens,
            "num_verified_draft_tokens": self.num_verified_draft_tokens,
            "num_emitted_tokens": self.num_emitted_tokens,
            "num_spec_tokens": num_spec_tokens,
            "accepted_per_position": self.accepted_per_position(num_spec_tokens),
            "proposed_per_position": self.proposed_per_position(num_spec_tokens),
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
