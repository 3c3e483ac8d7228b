"""One round: propose, run the target once over everything planned, verify. AR, SD and SSD are this function.

Without a drafter, or with K = 0, a verification is that of an empty speculation, which is autoregressive
decoding.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sonoran.backends.base import Backend
from sonoran.backends.rows import TrunkPart, trunk_rows
from sonoran.engine.drafter import CachingDrafter, Drafter, DraftRequest, DraftRound
from sonoran.engine.scheduler import Work
from sonoran.engine.stats import EngineStats, Times
from sonoran.engine.trace import SpanLog
from sonoran.errors import SonoranError
from sonoran.sampling.proposals import EMPTY, Speculation
from sonoran.sampling.verification import Verified, verify
from sonoran.types import FloatArray

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Marks:
    """Seconds at which the parts of a round began and ended."""

    begin: float
    drafted: float  # the drafter has answered
    packed: float  # the rows of the pass are ready
    ran: float
    sampled: float


@dataclass(slots=True)
class RoundResult:
    """What became of each work, in order: a verification, an error, or None in the middle of a prompt."""

    speculations: list[Speculation]
    verified: list[Verified | SonoranError | None]
    num_rows: int
    marks: Marks
    times: Times = field(default_factory=Times)
    draft: DraftRound | None = None  # when a draft worker was asked


def run_round(
    works: Sequence[Work], target: Backend, drafter: Drafter | None, eos_ids: Sequence[int]
) -> RoundResult:
    """Run one round. Errors of the target's pass are raised; those of one verification are returned."""
    begin = time.perf_counter()
    speculations = propose(works, drafter)
    drafted = time.perf_counter()
    rows = trunk_rows(
        [_trunk_part(work, speculation) for work, speculation in zip(works, speculations, strict=True)],
        target.block_size,
    )
    packed = time.perf_counter()
    logits = target.forward(rows)
    ran = time.perf_counter()
    verified: list[Verified | SonoranError | None] = []
    first = 0
    for work, speculation in zip(works, speculations, strict=True):
        if not work.reaches_end:
            verified.append(None)
            continue
        last = first + 1 + len(speculation)
        verified.append(_verify(work, speculation, logits[first:last], eos_ids))
        first = last
    sampled = time.perf_counter()
    times = Times(drafted - begin, ran - packed, sampled - ran, packed - drafted)
    marks = Marks(begin, drafted, packed, ran, sampled)
    draft = None
    if isinstance(drafter, CachingDrafter) and any(work.speculate > 0 for work in works):
        draft = drafter.last_round
    return RoundResult(speculations, verified, len(rows), marks, times, draft)


def propose(works: Sequence[Work], drafter: Drafter | None) -> list[Speculation]:
    """Ask the drafter for those works that speculate; a drafter that fails costs speed, never a text."""
    speculations = [EMPTY] * len(works)
    asking = [index for index, work in enumerate(works) if work.speculate > 0]
    if drafter is None or not asking:
        return speculations
    requests = [draft_request(works[index]) for index in asking]
    try:
        answers = drafter.propose(requests)
    except SonoranError as error:
        log.warning("drafting failed; this round is decoded without it: %s", error)
        drafter.reset()
        return speculations
    for index, request, answer in zip(asking, requests, answers, strict=True):
        speculations[index] = answer if len(answer) <= request.wanted else answer.cut(request.wanted)
    return speculations


def draft_request(work: Work) -> DraftRequest:
    """Return what a drafter needs to know of a sequence."""
    sequence = work.sequence
    return DraftRequest(
        sequence.id,
        sequence.tokens,
        sequence.prompt_length,
        work.speculate,
        sequence.params,
        sequence.seed,
        sequence.outcome,
    )


def _trunk_part(work: Work, speculation: Speculation) -> TrunkPart:
    sequence = work.sequence
    tokens, start, table = sequence.tokens, sequence.computed, sequence.table.blocks
    span = tokens[start : start + work.count]
    if not work.reaches_end:
        return TrunkPart(span, start, 0, table)
    return TrunkPart([*span, *speculation.tokens], start, 1 + len(speculation), table)


def _verify(
    work: Work, speculation: Speculation, logits: FloatArray, eos_ids: Sequence[int]
) -> Verified | SonoranError:
    sequence = work.sequence
    try:
        return verify(
            sequence.params.verification,
            logits,
            sequence.tokens,
            sequence.prompt_length,
            speculation,
            sequence.params,
            sequence.seed,
            eos_ids,
        )
    except SonoranError as error:
        return error


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
