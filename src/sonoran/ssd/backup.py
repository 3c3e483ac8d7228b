"""Backup: what drafts for the rows that missed the speculation cache (SSD paper, section 4.3).

Rows that hit keep their cached speculation. The draft, just in time, drafts well but the whole batch waits
for it; n-grams, random tokens and nothing cost no time. ``auto`` starts with b* (Theorem 17) and is then
corrected by what was observed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

from sonoran.config import Backup, check_length
from sonoran.errors import ConfigError, nearest
from sonoran.sampling import noise
from sonoran.sampling.proposals import Speculation
from sonoran.ssd.statistics import OutcomeStatistics
from sonoran.theory.speedup import batch_speedup, critical_batch_size
from sonoran.types import Origin

WARMUP = 32
"""Rounds after which a backup is judged by what was observed of it."""

EXPLORE_EVERY = 64
"""One decision of ``auto`` in so many goes to the backup seen less, so that both estimates stay alive."""


@dataclass(slots=True)
class Pace:
    """Tokens per millisecond over the last rounds, all sequences of a batch together."""

    weight: float = 0.1
    tokens: float = 0.0
    milliseconds: float = 0.0

    def observe(self, tokens: int, milliseconds: float) -> None:
        """Count one round."""
        keep = 1.0 - self.weight
        self.tokens = keep * self.tokens + self.weight * tokens
        self.milliseconds = keep * self.milliseconds + self.weight * milliseconds

    @property
    def rate(self) -> float:
        """Tokens per millisecond; 0 before the first round."""
        return self.tokens / self.milliseconds if self.milliseconds > 0.0 else 0.0


def top_up_goals(
    drafted: Sequence[int],
    wanted: Sequence[int],
    acceptance: float,
    rate: float,
    pass_ms: Callable[[int], float],
) -> list[int]:
    """Return how many tokens each speculation should have before it is sent.

    ``drafted`` tokens are there, ``wanted`` is the most; ``pass_ms(n)`` is the time of a draft pass that extends n
    sequences at once. Passes go on while the tokens they are expected to add exceed what waiting costs.
    """
    lengths = list(drafted)
    while growing := [i for i, length in enumerate(lengths) if length < wanted[i]]:
        gain = sum(acceptance ** (lengths[i] + 1) for i in growing)
        if gain <= rate * pass_ms(len(growing)):
            break
        for i in growing:
            lengths[i] += 1
    return lengths


def random_proposal(seed: int, position: int, num_tokens: int, vocab_size: int) -> Speculation:
    """Return tokens drawn uniformly from the ids below ``vocab_size``, for ``position`` on, with that distribution.

    A pure function of its arguments: the number for a position comes from the request's seed in the stream
    that drafts draw from, which no verification reads. Raises ConfigError for an empty vocabulary, and for more tokens
    than a speculation has.
    """
    check_length(num_tokens)
    if vocab_size < 1:
        raise ConfigError(f"vocab_size must be >= 1, got {vocab_size!r}")
    tokens = [
        (noise.uniform_bits(seed, position + i, noise.Stream.DRAFT) * vocab_size) >> noise.UNIFORM_BITS
        for i in range(num_tokens)
    ]
    return Speculation.uniform(tokens, vocab_size)


class BackupPolicy:
    """Chooses a backup for each missing row of a round.

    ``statistics`` supply hit rates and tokens per round by origin, ``observe_latency`` the times. ``auto``
    follows b* until the draft and its rival were seen WARMUP times each. Raises ConfigError.
    """

    def __init__(self, kind: Backup, statistics: OutcomeStatistics, num_speculative_tokens: int) -> None:
        if kind not in get_args(Backup):
            raise ConfigError(f"unknown backup {kind!r}{nearest(str(kind), get_args(Backup))}")
        self.kind, self.statistics = kind, statistics
        self.num_speculative_tokens = num_speculative_tokens
        self.verification_ms: float | None = None
        self.draft_ms: float | None = None
        self._decisions = 0

    def observe_latency(self, *, verification_ms: float | None = None, draft_ms: float | None = None) -> None:
        """Report measured times: of a verification pass, and of drafting K tokens just in time.

        Running means.
        """
        if verification_ms is not None:
            self.verification_ms = _running(self.verification_ms, verification_ms)
        if draft_ms is not None:
            self.draft_ms = _running(self.draft_ms, draft_ms)

    def choose(self, batch_size: int, ngram_ready: Sequence[bool]) -> list[Origin]:
        """Return the backup of each missing row; ``ngram_ready`` says whether n-grams propose anything for it.

        The draft is chosen for all missing rows or for none, since they share its passes and its delay. A row
        without an n-gram gets no speculation where n-grams were meant. Raises ConfigError when more rows miss
        than there are.
        """
        if len(ngram_ready) > batch_size:
            raise ConfigError(f"{len(ngram_ready)} rows of a batch of {batch_size} cannot miss")
        fast: list[Origin] = ["ngram" if ready else "none" for ready in ngram_ready]
        if not fast or self.kind == "ngram":
            return fast
        if self.kind == "auto":
            return ["draft"] * len(fast) if self._drafts(batch_size, fast) else fast
        return [self.kind] * len(fast)

    def critical_batch_size(self, rival: Origin = "ngram") -> float:
        """Return b* (Theorem 17) from the running estimates; infinite while the times are unknown."""
        if not self.verification_ms or self.draft_ms is None:
            return float("inf")
        return critical_batch_size(
            self.statistics.overall_hit_rate(),
            self._tokens("primary"),
            self._tokens(rival),
            self.draft_ms / self.verification_ms,
        )

    def _drafts(self, batch_size: int, fast: Sequence[Origin]) -> bool:
        rival: Origin = "ngram" if "ngram" in fast else "none"
        self._decisions += 1
        rounds = self.statistics.rounds
        if not self.verification_ms or self.draft_ms is None:
            return True  # the only way to learn what it costs
        if self._decisions % EXPLORE_EVERY == 0:
            return rounds("draft") <= rounds(rival)
        if min(rounds("draft"), rounds(rival)) < WARMUP:
            return batch_size < self.critical_batch_size(rival)
        return self._advantage(batch_size, fast, rival) > 0.0

    def _advantage(self, batch_size: int, fast: Sequence[Origin], rival: Origin) -> float:
        """Tokens that drafting gains now and, by more hits, in the next round, less those the wait costs."""
        cost = (self.draft_ms or 0.0) / (self.verification_ms or 1.0)
        hit, hit_rate = self._tokens("primary"), self.statistics.overall_hit_rate()
        # What waiting costs: the best rate of tokens that the batch can have, per verification time.
        latencies: list[tuple[Origin, float]] = [("draft", cost), (rival, 0.0)]
        rates = [
            batch_speedup(hit_rate, hit, self._tokens(origin), 1.0, latency, batch_size)
            for origin, latency in latencies
        ]
        gain_of_hit = max(0.0, hit - self._tokens(rival))
        drafted = len(fast) * self._value("draft", gain_of_hit)
        kept = sum(self._value(origin, gain_of_hit) for origin in fast)
        return drafted - kept - cost * batch_size * max(rates)

    def _value(self, origin: Origin, gain_of_hit: float) -> float:
        return self._tokens(origin) + self.statistics.hit_rate_after(origin) * gain_of_hit

    def _tokens(self, origin: Origin) -> float:
        return self.statistics.mean_tokens(origin, self.num_speculative_tokens)


def _running(mean: float | None, value: float) -> float:
    """Exponential mean over about ten values; refuses what no clock returns."""
    if not 0.0 <= value < float("inf"):
        raise ConfigError(f"a latency must be finite and >= 0 ms, got {value!r}")
    return value if mean is None else mean + 0.1 * (value - mean)
