"""What the parts of a speculator share: the model, the settings, and everything that is measured as it goes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from sonoran.backends.base import Backend, Rows
from sonoran.backends.vocabulary import KnownTokens
from sonoran.config import SpeculationSettings
from sonoran.engine.trace import SpanLog
from sonoran.sampling.drafts import draft_chance
from sonoran.sampling.proposals import ProposalDistribution
from sonoran.ssd.backup import BackupPolicy, Pace
from sonoran.ssd.copies import CopyPolicy
from sonoran.ssd.fan_out import FanOutPolicy
from sonoran.ssd.model import DraftModel
from sonoran.ssd.outcomes import AverageOutcomes, ConfidenceWeight
from sonoran.ssd.sequence import DraftSequence
from sonoran.ssd.statistics import OutcomeStatistics
from sonoran.theory.latency import RunningLatency
from sonoran.types import FloatArray

DEFAULT_BUDGET = 8
"""Guesses per sequence under ``auto`` until latencies are known."""

JUST_IN_TIME = "just in time"
"""Name of the passes that a reply waits for."""


@dataclass(slots=True)
class Counters:
    """Totals since the client came."""

    rounds: int = 0
    hits: int = 0  # of the cache, also where a copy was sent in place of what it had
    misses: int = 0
    early_answers: int = 0  # hits whose branch was not finished when the outcome came
    topped_up: int = 0  # of these, how many were drafted on because that was worth the wait
    without_memory: int = 0
    passes: int = 0
    rows: int = 0


@dataclass(slots=True)
class Context:
    """One client's speculation. ``width`` leading columns of the logits are looked at; ``backend`` is the model's,
    which need not know all tokens of the target."""

    model: DraftModel
    backend: Backend
    settings: SpeculationSettings
    width: int
    eos_ids: tuple[int, ...]
    statistics: OutcomeStatistics
    fan_out: FanOutPolicy
    backup: BackupPolicy
    average: AverageOutcomes
    copying: CopyPolicy
    latency: RunningLatency = field(default_factory=RunningLatency)  # of passes beside the target's
    exposed_latency: RunningLatency = field(default_factory=RunningLatency)  # the target waits for these
    pace: Pace = field(default_factory=Pace)
    confidence: ConfidenceWeight = field(default_factory=ConfidenceWeight)
    guesses: float = 0.0  # per sequence and round, a running mean
    counters: Counters = field(default_factory=Counters)
    spans: SpanLog | None = None  # recorded while there is one

    @classmethod
    def make(
        cls,
        model: DraftModel,
        settings: SpeculationSettings,
        vocab_size: int,
        eos_ids: tuple[int, ...],
        num_tokens: int = 0,
    ) -> Context:
        """Set up policies for a client whose target has ``vocab_size`` output rows and ``num_tokens`` tokens."""
        backend, width = model.backend, min(model.backend.config.vocab_size, vocab_size)
        if num_tokens and model.num_tokens and num_tokens != model.num_tokens:
            width = min(width, num_tokens, model.num_tokens)
        if (
            num_tokens > model.num_tokens > 0
        ):  # to the draft these are padding, if it has rows for them at all
            backend = KnownTokens(backend, model.num_tokens, model.stand_in)
        statistics = OutcomeStatistics()
        budget = settings.budget if isinstance(settings.budget, int) else DEFAULT_BUDGET
        return cls(
            model=model,
            settings=settings,
            width=width,
            backend=backend,
            eos_ids=eos_ids,
            statistics=statistics,
            fan_out=FanOutPolicy(
                statistics,
                settings.fan_out,
                budget,
                primary=settings.fan_out_primary,
                backup=settings.fan_out_backup,
            ),
            backup=BackupPolicy(settings.backup, statistics, settings.num_speculative_tokens),
            average=AverageOutcomes(statistics),
            copying=CopyPolicy(settings.copy_tokens),
        )

    @property
    def block_size(self) -> int:
        """KV slots per block."""
        return self.model.kv.block_size

    def forward(self, rows: Rows, what: str) -> FloatArray:
        """Run one draft pass, timed; ``what`` it is for is its name in a trace."""
        begin = time.perf_counter()
        logits = self.backend.forward(rows)
        end = time.perf_counter()
        latency = self.exposed_latency if what == JUST_IN_TIME else self.latency
        latency.observe(len(rows), 1e3 * (end - begin))
        if self.spans is not None:
            self.spans.add(what, begin, end, rows=len(rows))
        self.counters.passes += 1
        self.counters.rows += len(rows)
        return logits

    def sample(
        self, s: DraftSequence, row: FloatArray, drafted: list[int]
    ) -> tuple[int, ProposalDistribution | None]:
        """Draw the token after what is committed and ``drafted``."""
        fan_out = max(s.fan_out, default=1)
        return s.sample(row[: self.width], drafted, self.eos_ids, fan_out, self.settings.saguaro_c)

    def chance(
        self, s: DraftSequence, row: FloatArray, token: int, q: ProposalDistribution | None, position: int
    ) -> float:
        """Return the chance that the token drawn for ``position`` is accepted; 1 when nobody asks."""
        if self.settings.least_chance <= 0.0:
            return 1.0
        return draft_chance(s.rule, row[: self.width], token, q, s.params, s.seed, position)

    def reserve(self, s: DraftSequence, beyond: int) -> bool:
        """Make the trunk writable up to ``beyond`` tokens after the committed ones; False if memory is lacking."""
        start = min(s.computed, len(s.tokens) - 1)
        if self.model.kv.reserve(s.table, start, len(s.tokens) + max(0, beyond)):
            return True
        self.counters.without_memory += 1
        return False

    def release_scratch(self, s: DraftSequence) -> None:
        """Give the blocks of a sequence's branches back."""
        for block in s.scratch:
            self.model.kv.pool.release(block)
        s.scratch = []
