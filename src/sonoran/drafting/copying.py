"""A drafter around a drafter: a round whose speculation is copied from the text asks the inner one nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sonoran.engine.drafter import Drafter, DraftRequest
from sonoran.engine.trace import Span
from sonoran.sampling.proposals import Speculation
from sonoran.ssd.copies import CopyPolicy, CopySource


@dataclass(frozen=True, slots=True)
class _Round:
    """The last round: when it began and when its speculations were there, and what was proposed to whom."""

    begin_s: float
    proposed_s: float
    lengths: dict[int, int]  # tokens proposed, by sequence
    copied: frozenset[int]


class CopyingDrafter:
    """Copies where that promises more tokens per second than what the inner drafter gave in the last rounds.

    The inner drafter hears nothing of a round that is copied; it catches up when it is asked again. ``clock`` returns
    seconds.
    """

    def __init__(
        self,
        inner: Drafter,
        *,
        num_speculative_tokens: int,
        copy_tokens: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Ask ``inner`` for at most ``num_speculative_tokens``, and copy at most ``copy_tokens``."""
        self.inner = inner
        self.policy = CopyPolicy(copy_tokens)
        self._most = num_speculative_tokens
        self._clock = clock
        self._texts: dict[int, CopySource] = {}
        self._last: _Round | None = None

    @property
    def max_context(self) -> int | None:
        """Tokens that the inner draft can see."""
        return self.inner.max_context

    def admit(self, request: DraftRequest) -> None:
        """Let the inner drafter read a prompt."""
        self.inner.admit(replace(request, wanted=min(request.wanted, self._most)))

    def propose(self, requests: Sequence[DraftRequest]) -> list[Speculation]:
        """Return a copy for each sequence where that is better, and for the others what the inner drafter has."""
        begin = self._clock()
        self._learn(requests, begin)
        found: list[Speculation | None] = [self._copy(request, len(requests)) for request in requests]
        copied = frozenset(r.sequence_id for r, s in zip(requests, found, strict=True) if s is not None)
        asked = [
            self._for_inner(request) for request, copy in zip(requests, found, strict=True) if copy is None
        ]
        answers = iter(self.inner.propose(asked) if asked else [])
        speculations = [next(answers) if copy is None else copy for copy in found]
        lengths = {r.sequence_id: len(s) for r, s in zip(requests, speculations, strict=True)}
        self._last = _Round(begin, self._clock(), lengths, copied)
        return speculations

    def release(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self._texts.pop(sequence_id, None)
        self._last = None
        self.inner.release(sequence_id)

    def reset(self) -> None:
        """Forget every sequence; what was measured stays."""
        self._texts.clear()
        self._last = None
        self.inner.reset()

    def check_invariants(self) -> None:
        """Raise RuntimeError when sequences are left that were never released."""
        if self._texts:
            raise RuntimeError(f"the copying drafter still holds sequences {sorted(self._texts)}")
        self.inner.check_invariants()

    def stats(self, ask_worker: bool = True) -> dict[str, Any]:
        """Return the inner drafter's counters, how many speculations were copied, and what copies were right."""
        copies = {"num_copies": self.policy.copies, "right_by_match": self.policy.rates.as_dict()}
        return {**self.inner.stats(ask_worker), "copies": copies}

    def record(self, limit: int) -> list[Span] | None:
        """Record the inner drafter's worker, if it has one."""
        return self.inner.record(limit)

    def close(self) -> None:
        """Free the inner draft."""
        self.inner.close()

    def _copy(self, request: DraftRequest, batch: int) -> Speculation | None:
        text = self._texts.get(request.sequence_id)
        if text is None:
            text = self._texts[request.sequence_id] = CopySource(self.policy.rates, request.prompt_length)
        text.follow(request.tokens)
        start, length = self.policy.choose(text, request.wanted, batch)
        return replace(text.index.copy(start, length), origin="copy") if length else None

    def _for_inner(self, request: DraftRequest) -> DraftRequest:
        """Cut what is wanted; the outcome of a copy is none of the inner drafter's."""
        foreign = self._last is None or request.sequence_id in self._last.copied
        outcome = None if foreign else request.outcome
        return replace(request, wanted=min(request.wanted, self._most), outcome=outcome)

    def _learn(self, requests: Sequence[DraftRequest], now: float) -> None:
        """Count the last round if it was like others: the same sequences, all of them verified."""
        last = self._last
        if last is None or list(last.lengths) != [r.sequence_id for r in requests]:
            return
        outcomes = [request.outcome for request in requests if request.outcome is not None]
        if len(outcomes) < len(requests) or not requests:
            return
        rows = sum(last.lengths.values()) + len(requests)
        emitted = sum(outcome.accepted + 1 for outcome in outcomes)
        self.policy.observe_round(emitted, 1e3 * (now - last.begin_s))
        self.policy.latency.observe(rows, 1e3 * (now - last.proposed_s))
        if not last.copied:
            share = 1.0 / len(requests)
            waited_ms = 1e3 * (last.proposed_s - last.begin_s)
            self.policy.rival.observe(share * emitted, share * rows - 1.0, waited_ms)
