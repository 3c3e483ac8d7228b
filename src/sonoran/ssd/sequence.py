"""What the draft worker knows of one sequence, and how an outcome changes it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sonoran.config import Law
from sonoran.engine.kv import BlockTable
from sonoran.errors import ConfigError
from sonoran.sampling.drafts import draft_sample
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.proposals import EMPTY, ProposalDistribution, Speculation
from sonoran.ssd.cache import SpeculationCache
from sonoran.ssd.copies import CopySource
from sonoran.ssd.messages import Item, Prefill
from sonoran.ssd.outcomes import OutcomePrediction
from sonoran.ssd.saguaro import saguaro_sample
from sonoran.ssd.suffixes import SuffixIndex
from sonoran.types import FloatArray, Origin, Outcome


@dataclass(slots=True, eq=False)
class DraftSequence:
    """A sequence of the target. ``tokens`` are committed; the first ``computed`` of them have keys and values in the
    trunk, followed by those of the first ``ahead`` tokens of ``sent``, the speculation under verification.
    """

    id: int
    generation: int
    tokens: list[int]
    prompt_length: int
    seed: int
    params: SamplingParams
    rule: Law
    wanted: int  # tokens to draft for the next round
    table: BlockTable = field(default_factory=BlockTable)
    computed: int = 0
    ahead: int = 0
    sent: Speculation = EMPTY
    origin: Origin = "none"
    stale: bool = True  # no guesses were made yet about the verification of ``sent``
    ranked: list[list[int]] | None = None  # bonus candidates at k = 0..K, kept for the statistics
    prediction: OutcomePrediction | None = None  # of the probability of each, under the rule ``confidence``
    cache: SpeculationCache = field(default_factory=SpeculationCache)  # what to send next, by outcome
    complete: bool = False  # ``sent`` is as long as it is meant to be
    ended: set[Outcome] = field(default_factory=set)  # outcomes whose branch is not to grow any more
    fan_out: list[int] = field(default_factory=list)
    scratch: list[int] = field(default_factory=list)  # blocks of the branches
    suffixes: SuffixIndex | None = None  # for the backup ngram, and no more up to date than that needed
    copies: CopySource | None = None  # where copies are allowed

    @property
    def unread(self) -> int:
        """Committed tokens before the last one that are not in KV memory: a prompt, or what was missed."""
        return max(0, len(self.tokens) - 1 - self.computed)

    def commit(self, item: Item) -> Outcome | None:
        """Append what the target committed; return the outcome of ``sent``, or None when it was not verified.

        Raises ConfigError when the item does not continue what is known.
        """
        length = len(self.tokens)
        if item.base != length or not item.tokens or item.generation != self.generation:
            raise ConfigError(f"sequence {self.id} has {length} tokens, the target speaks of {item.base}")
        accepted = item.accepted
        if accepted < 0 and not self.sent.tokens and len(item.tokens) == 1:
            accepted = 0  # nothing was proposed, so a single new token is the bonus token
        self.tokens.extend(item.tokens)
        verified = (
            0 <= accepted == len(item.tokens) - 1
            and tuple(item.tokens[:accepted]) == self.sent.tokens[:accepted]
            and accepted <= len(self.sent)
        )
        if verified and self.computed == length:
            self.computed += min(accepted, self.ahead)
        self.ahead = 0
        return Outcome(accepted, item.tokens[-1]) if verified else None

    def propose(self, speculation: Speculation, origin: Origin) -> None:
        """Remember what was sent for verification; guesses about it have to be made."""
        self.sent, self.origin = speculation, origin
        self.stale, self.ranked, self.prediction = True, None, None

    def ngrams(self) -> SuffixIndex:
        """Return the index over the sequence's own text, up to date."""
        if self.copies is not None:
            self.copies.follow(self.tokens)
            return self.copies.index
        if self.suffixes is None:
            self.suffixes = SuffixIndex()
        self.suffixes.extend(self.tokens[len(self.suffixes) :])
        return self.suffixes

    def sample(
        self, row: FloatArray, drafted: list[int], eos_ids: tuple[int, ...], fan_out: int, saguaro_c: float
    ) -> tuple[int, ProposalDistribution | None]:
        """Draft the token after ``tokens`` and ``drafted`` from the draft's logits; return it and its distribution.

        ``fan_out`` is F of Saguaro sampling, which applies under the rejection rule at temperature > 0 when
        ``saguaro_c`` is below 1.
        """
        position = len(self.tokens) + len(drafted)
        prefix: np.ndarray | list[int] = [*self.tokens, *drafted] if self.params.reads_prefix else []
        if saguaro_c < 1.0 and self.rule == "rejection" and not self.params.greedy:
            return saguaro_sample(
                row, prefix, self.prompt_length, self.params, self.seed, position, fan_out, saguaro_c, eos_ids
            )
        return draft_sample(
            self.rule, row, prefix, self.prompt_length, self.params, self.seed, position, eos_ids
        )


def start_sequence(message: Prefill, wanted: int) -> DraftSequence:
    """Make the state of a new sequence. Raises ConfigError for parameters that make no sense."""
    if not message.tokens or not 0 < message.prompt_length <= len(message.tokens):
        raise ConfigError(f"sequence {message.sequence} has a prompt of {message.prompt_length} tokens")
    return DraftSequence(
        id=message.sequence,
        generation=message.generation,
        tokens=list(message.tokens),
        prompt_length=message.prompt_length,
        seed=message.seed,
        params=message.params,
        rule=message.law or message.params.verification,
        wanted=wanted,
    )
