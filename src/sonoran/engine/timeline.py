"""The target's lane of a trace: one span per round, and inside it what the round consisted of."""

from __future__ import annotations

from collections.abc import Sequence

from sonoran.engine.round import RoundResult
from sonoran.trace.spans import SpanLog


def record_round(
    log: SpanLog, begin_s: float, end_s: float, result: RoundResult, emitted: Sequence[int]
) -> None:
    """Add a round that lasted from `begin_s` to `end_s` and left so many new tokens of each sequence in it."""
    marks, draft = result.marks, result.draft
    origins = [answer.origin for answer in draft.answers.values()] if draft is not None else []
    log.add("round", begin_s, end_s, emitted=list(emitted), origins=origins)
    log.add("schedule", begin_s, marks.begin)
    # Asking a worker is waiting for it; a drafter in this process works meanwhile.
    log.add("draft wait" if draft is not None else "draft", marks.begin, marks.drafted)
    log.add("forward", marks.packed, marks.ran, rows=result.num_rows)
    log.add("sampling", marks.ran, marks.sampled)
    log.add("rest", marks.sampled, end_s)
