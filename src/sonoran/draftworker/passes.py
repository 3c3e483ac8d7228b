"""Passes of the draft along the trunk: reading prompts, and drafting just in time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sonoran.drafting.layout import TrunkPart, trunk_rows
from sonoran.draftworker.context import Context
from sonoran.draftworker.sequences import DraftSequence
from sonoran.sampling.proposals import Law, Speculation


def read_prompts(context: Context, sequences: Iterable[DraftSequence]) -> Iterator[None]:
    """Read what is unread, one sequence after the other, yielding after each pass of at most ``max_rows`` rows."""
    for s in sequences:
        while s.unread:
            if not context.reserve(s, 0):
                break
            size = min(s.unread, context.model.max_rows)
            part = TrunkPart(s.tokens[s.computed : s.computed + size], s.computed, 0, s.table.blocks)
            context.forward(trunk_rows([part], context.block_size), "prompt")
            s.computed += size
            yield


def draft_just_in_time(context: Context, sequences: Iterable[DraftSequence]) -> None:
    """Draft ``wanted`` tokens for each sequence, one pass per token for all of them: the backup ``draft``.

    Sequences without memory are left as they are.
    """
    batch = [s for s in sequences if context.reserve(s, s.wanted - 1)]
    drafted: dict[int, list[int]] = {s.id: [] for s in batch}
    laws: dict[int, list[Law]] = {s.id: [] for s in batch}
    for step in range(max((s.wanted for s in batch), default=0)):
        active = [s for s in batch if step < s.wanted]
        parts = []
        for s in active:
            # The last committed token always runs again: its logits are wanted.
            fresh = s.tokens[min(s.computed, len(s.tokens) - 1) :] if step == 0 else drafted[s.id][-1:]
            parts.append(TrunkPart(fresh, len(s.tokens) + step - len(fresh), 1, s.table.blocks))
        logits = context.forward(trunk_rows(parts, context.block_size), "just in time")
        for s, row in zip(active, logits, strict=True):
            token, law = context.sample(s, row, drafted[s.id])
            drafted[s.id].append(token)
            if law is not None:
                laws[s.id].append(law)
    for s in batch:
        s.computed, s.ahead = len(s.tokens), len(drafted[s.id]) - 1
        s.propose(Speculation(tuple(drafted[s.id]), tuple(laws[s.id])), "draft")
