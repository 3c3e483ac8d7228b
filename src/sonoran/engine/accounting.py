"""What a round that is done adds to the counters: of the engine, and of each sequence that took part."""

from __future__ import annotations

from collections.abc import Sequence

from sonoran.engine.round import RoundResult
from sonoran.engine.scheduler import Work
from sonoran.engine.stats import EngineStats


def count_round(
    totals: EngineStats, works: Sequence[Work], result: RoundResult, emitted: Sequence[int], rest_s: float
) -> None:
    """Count a round; `emitted` tokens are left of each work, `rest_s` was spent beside `run_round`."""
    result.times.rest += rest_s
    totals.times.add(result.times)
    totals.num_rounds += 1
    totals.num_rows += result.num_rows
    for work in works:
        work.sequence.stats.times.add(result.times)
        work.sequence.stats.num_rounds += 1
    if result.draft is None:
        return
    length = result.times.total
    totals.cache.record_round(result.draft, length)
    for work, kept in zip(works, emitted, strict=True):
        cache = work.sequence.stats.cache
        if work.speculate > 0:
            cache.record_round(result.draft, length)
        answer = result.draft.answers.get(work.sequence.id)
        if answer is not None and kept:
            for counters in (cache, totals.cache):
                counters.record_answer(answer, kept)
