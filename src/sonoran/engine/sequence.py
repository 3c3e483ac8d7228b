"""A request and its sequences, as the engine sees them."""

from __future__ import annotations

from dataclasses import dataclass, field

from sonoran.engine.stats import SequenceStats
from sonoran.errors import SonoranError
from sonoran.kv.memory import BlockTable
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.stops import StopChecker
from sonoran.types import FinishReason, Outcome, TokenLogprob


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of a request. `tokens` only ever grows; the first `computed` of them are in KV memory."""

    request_id: str
    index: int  # number of the sample
    params: SamplingParams
    seed: int
    tokens: list[int]
    prompt_length: int
    stop: StopChecker
    max_speculation: int  # K asked for; 0 when speculation is off
    max_length: int  # tokens that the target can see
    draft_context: int | None  # tokens that the draft can see
    siblings: list[Sequence] = field(default_factory=list, repr=False)
    id: int = -1  # unique in the engine once the request is queued
    table: BlockTable = field(default_factory=BlockTable)
    computed: int = 0
    outcome: Outcome | None = None  # of the drafter's last speculation
    num_cached: int = 0
    num_preemptions: int = 0
    text: str = ""  # what may be shown; never taken back
    logprobs: list[TokenLogprob] = field(default_factory=list)
    stats: SequenceStats = field(default_factory=SequenceStats)

    @property
    def remaining(self) -> int:
        """Committed tokens that are not in KV memory yet: 1 while decoding, more while filling."""
        return len(self.tokens) - self.computed

    @property
    def output_ids(self) -> list[int]:
        """Tokens generated so far."""
        return self.tokens[self.prompt_length :]

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended, or None."""
        return self.stop.finish_reason

    def wanted_speculation(self) -> int:
        """Return K for the next round: what was asked for, cut to the room in both contexts and the tokens
        wanted.

        The first new token waits for no draft, so that speculation costs nothing in time to first token.
        """
        length = len(self.tokens)
        if self.max_speculation == 0 or length == self.prompt_length:
            return 0
        # A round emits up to K + 1 tokens; the draft does not run the last token it proposes.
        wanted = min(self.max_speculation, self.max_length - length - 1, self.stop.remaining - 1)
        if self.draft_context is not None:
            wanted = min(wanted, self.draft_context - length + 1)
        return max(0, wanted)

    def fork_source(self) -> Sequence | None:
        """Return another sample of the request whose KV memory holds the prompt."""
        if self.prompt_length < 2 or len(self.tokens) > self.prompt_length:
            return None
        for other in self.siblings:
            if other is not self and other.table.blocks and other.computed >= self.prompt_length - 1:
                return other
        return None


@dataclass(slots=True, eq=False)
class Request:
    """What the user asked for: one prompt, and `params.n` samples of its continuation."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    arrival: float  # seconds on the engine's clock
    sequences: list[Sequence]
    error: SonoranError | None = None

    @property
    def finished(self) -> bool:
        """Whether every sample has ended."""
        return all(sequence.finish_reason is not None for sequence in self.sequences)
