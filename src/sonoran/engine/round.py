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
from sonoran.engine.drafters.base import CachingDrafter, Drafter, DraftRequest, DraftRound
from sonoran.engine.rows import trunk_rows
from sonoran.engine.scheduler import Work
from sonoran.engine.stats import Times
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
        [_span(work, speculation) for work, speculation in zip(works, speculations, strict=True)],
        [work.sequence.table.blocks for work in works],
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


def _span(work: Work, speculation: Speculation) -> tuple[list[int], int, int]:
    sequence = work.sequence
    ids = sequence.tokens[sequence.computed : sequence.computed + work.count]
    if not work.reaches_end:
        return ids, sequence.computed, 0
    return [*ids, *speculation.tokens], sequence.computed, 1 + len(speculation)


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
