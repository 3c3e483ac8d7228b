"""One round: propose, run the target once over everything planned, verify. AR, SD and SSD are this function.

Without a drafter, or with K = 0, a verification is that of an empty speculation, which is autoregressive
decoding.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sonoran.backends.base import Backend
from sonoran.backends.rows import TrunkPart, trunk_rows
from sonoran.engine.drafter import CachingDrafter, Drafter, DraftRequest, DraftRound
from sonoran.engine.scheduler import Work
from sonoran.engine.sequence import Sequence as Generated
from sonoran.engine.stats import EngineStats, Times
from sonoran.engine.trace import SpanLog
from sonoran.errors import SonoranError
from sonoran.sampling.proposals import EMPTY, Speculation
from sonoran.sampling.verification import Verified, token_logprob, verify
from sonoran.types import FloatArray, RoundEvent, SampleRound

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Share:
    """One sequence's part of a round and what became of it."""

    work: Work
    speculation: Speculation
    verified: Verified | SonoranError | None  # None in the middle of a prompt
    emitted: int = 0  # new tokens that truncation leaves; the engine fills it in


@dataclass(frozen=True, slots=True)
class Marks:
    """Seconds at which the parts of a round began and ended."""

    begin: float
    drafted: float  # the drafter has answered
    packed: float  # the rows of the pass are ready
    ran: float
    sampled: float

    def times(self, round_s: float) -> Times:
        """Return what the time of a round went into that lasted so long in all."""
        draft, verification = self.drafted - self.begin, self.ran - self.packed
        sampling = self.sampled - self.ran
        return Times(draft, verification, sampling, round_s - draft - verification - sampling)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """A round that was run: a share for each work, in order."""

    shares: list[Share]
    num_rows: int
    marks: Marks
    draft: DraftRound | None = None  # when a draft worker was asked


def run_round(
    works: Sequence[Work], target: Backend, drafter: Drafter | None, eos_ids: Sequence[int]
) -> RoundResult:
    """Run one round. Errors of the target's pass are raised; those of one verification are in its share."""
    begin = time.perf_counter()
    speculations = propose(works, drafter)
    drafted = time.perf_counter()
    parts = [_trunk_part(work, speculation) for work, speculation in zip(works, speculations, strict=True)]
    rows = trunk_rows(parts, target.block_size)
    packed = time.perf_counter()
    logits = target.forward(rows)
    ran = time.perf_counter()
    shares, first = [], 0
    for work, speculation, part in zip(works, speculations, parts, strict=True):
        last = first + part.num_logits
        own = 1 + len(speculation) if work.reaches_end else 0
        verified = _verify(work, speculation, logits[last - own : last], eos_ids) if own else None
        shares.append(Share(work, speculation, verified))
        if work.sequence.wants_prompt_logprobs:
            _read_prompt(work.sequence, logits[first:last])
        first = last
    marks = Marks(begin, drafted, packed, ran, time.perf_counter())
    draft = None
    if isinstance(drafter, CachingDrafter) and any(work.speculate > 0 for work in works):
        draft = drafter.last_round
    return RoundResult(shares, len(rows), marks, draft)


def propose(works: Sequence[Work], drafter: Drafter | None) -> list[Speculation]:
    """Ask the drafter for those works that speculate; a drafter that fails costs speed, never a text."""
    speculations = [_forced(work) for work in works]
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
        speculations[index] = _fitting(works[index].sequence, answer.cut(request.wanted))
    return speculations


def _forced(work: Work) -> Speculation:
    """Return what the form of a text leaves no choice about, for which no drafter is asked then."""
    grammar = work.sequence.grammar
    if grammar is None or work.speculate == 0:
        return EMPTY
    forced = grammar.forced()[: work.speculate]
    if len(forced) < 2:
        return EMPTY
    work.speculate = 0
    return Speculation.chosen(forced)


def _fitting(sequence: Generated, speculation: Speculation) -> Speculation:
    """Cut a speculation where it leaves the form that the text must have, and would be rejected.

    Under the rejection rule it stays: leaving out what was drawn because of what it is would change the distribution.
    """
    if sequence.grammar is None or sequence.params.verification == "rejection" or not speculation:
        return speculation
    return speculation.cut(sequence.grammar.legal(speculation.tokens))


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
    if sequence.wants_prompt_logprobs:
        return TrunkPart(span, start, len(span), table)
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
            sequence.grammar,
        )
    except SonoranError as error:
        return error


def _read_prompt(sequence: Generated, logits: FloatArray) -> None:
    """Find the log-probabilities of the prompt's next tokens; row i follows the token at ``computed + i``."""
    known = sequence.prompt_logprobs
    for position, row in enumerate(logits, sequence.computed + 1):
        # A sequence that was preempted reads what it has read once more.
        if len(known) + 1 == position < sequence.prompt_length:
            known.append(token_logprob(row, sequence.tokens[position], sequence.params.prompt_logprobs or 0))


def count_round(totals: EngineStats, result: RoundResult, round_s: float) -> None:
    """Count a round that lasted so long in all, after truncation."""
    times, draft = result.marks.times(round_s), result.draft
    totals.times.add(times)
    totals.num_rounds += 1
    totals.num_rows += result.num_rows
    if draft is not None:
        totals.cache.record_round(draft, round_s)
    for share in result.shares:
        stats = share.work.sequence.stats
        stats.times.add(times)
        stats.num_rounds += 1
        if draft is not None and share.work.speculate > 0:
            stats.cache.record_round(draft, round_s)
        if not isinstance(share.verified, Verified):
            continue
        totals.num_generated_tokens += share.emitted
        proposed, accepted = len(share.speculation), share.verified.accepted
        if proposed:
            stats.record(proposed, accepted, share.emitted)
            totals.speculation.record(proposed, accepted, share.emitted)
        answer = draft.answers.get(share.work.sequence.id) if draft is not None else None
        if answer is not None:
            stats.cache.record_answer(answer, share.emitted)
            totals.cache.record_answer(answer, share.emitted)


def round_event(result: RoundResult, end_s: float) -> RoundEvent:
    """Return what listeners are told of a round that ended at `end_s`, after truncation."""
    marks, draft = result.marks, result.draft
    return RoundEvent(
        tuple(_sample_round(share, draft) for share in result.shares),
        result.num_rows,
        marks.begin,
        marks.drafted,
        marks.packed,
        marks.ran,
        end_s,
        draft.hidden_s if draft is not None else None,
        draft.exposed_s if draft is not None else None,
    )


def _sample_round(share: Share, draft: DraftRound | None) -> SampleRound:
    sequence, verified, proposed = share.work.sequence, share.verified, share.speculation.tokens
    answer = draft.answers.get(sequence.id) if draft is not None else None
    emitted, accepted = share.emitted, 0
    if isinstance(verified, Verified):
        accepted = verified.accepted
    return SampleRound(
        sequence.request_id,
        sequence.index,
        proposed,
        accepted,
        tuple(sequence.tokens[len(sequence.tokens) - emitted :]),
        share.speculation.origin if proposed else "none",
        answer.before if answer is not None else None,
        share.work.count if len(sequence.tokens) - emitted == sequence.prompt_length else 0,
    )


def record_round(log: SpanLog, result: RoundResult, begin_s: float, end_s: float) -> None:
    """Add the spans of a round that lasted from `begin_s` to `end_s`."""
    marks, draft = result.marks, result.draft
    origins = [answer.origin for answer in draft.answers.values()] if draft is not None else []
    emitted = [share.emitted for share in result.shares]
    log.add("round", begin_s, end_s, emitted=emitted, origins=origins)
    log.add("schedule", begin_s, marks.begin)
    # Asking a worker is waiting for it; a drafter in this process works meanwhile.
    log.add("draft wait" if draft is not None else "draft", marks.begin, marks.drafted)
    log.add("forward", marks.packed, marks.ran, rows=result.num_rows)
    log.add("sampling", marks.ran, marks.sampled)
    log.add("rest", marks.sampled, end_s)
