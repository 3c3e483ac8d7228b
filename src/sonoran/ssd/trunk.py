"""Passes of the draft along the trunk: reading prompts, and drafting just in time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sonoran.backends.rows import TrunkPart, trunk_rows
from sonoran.sampling.proposals import ProposalDistribution, Speculation
from sonoran.ssd.context import JUST_IN_TIME, Context
from sonoran.ssd.sequence import DraftSequence
from sonoran.types import Origin


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


def draft_just_in_time(context: Context, goals: Sequence[tuple[DraftSequence, int]]) -> None:
    """Draft on until each speculation has its goal of tokens, one pass per token for all sequences, in the trunk.

    A speculation that has tokens already (a branch that was cut short) keeps them and its origin; an empty one becomes
    the backup ``draft``. Sequences without memory are left as they are.
    """
    batch = [(s, goal) for s, goal in goals if goal > len(s.sent) and context.reserve(s, goal - 1)]
    drafted: dict[int, list[int]] = {s.id: list(s.sent.tokens) for s, _ in batch}
    distributions: dict[int, list[ProposalDistribution]] = {
        s.id: list(s.sent.distributions) for s, _ in batch
    }
    alive = {s.id: 1.0 for s, _ in batch}
    read = {s.id: min(s.computed, len(s.tokens) - 1) for s, _ in batch}
    least = context.settings.least_chance
    while active := [s for s, goal in batch if len(drafted[s.id]) < goal and alive[s.id] >= least]:
        parts = []
        for s in active:
            # The last token always runs (again): its logits are wanted.
            fresh = [*s.tokens, *drafted[s.id]][read[s.id] :]
            parts.append(TrunkPart(fresh, read[s.id], 1, s.table.blocks))
            read[s.id] += len(fresh)
        logits = context.forward(trunk_rows(parts, context.block_size), JUST_IN_TIME)
        for s, row in zip(active, logits, strict=True):
            token, q = context.sample(s, row, drafted[s.id])
            if len(drafted[s.id]) + 1 < s.wanted:
                alive[s.id] *= context.chance(s, row, token, q, len(s.tokens) + len(drafted[s.id]))
            drafted[s.id].append(token)
            if q is not None:
                distributions[s.id].append(q)
    for s, _ in batch:
        s.computed, s.ahead = len(s.tokens), len(drafted[s.id]) - 1
        origin: Origin = "draft" if s.origin == "none" else s.origin
        s.propose(Speculation(tuple(drafted[s.id]), tuple(distributions[s.id])), origin)
