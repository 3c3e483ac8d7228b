"""The engine itself, one round at a time, in one thread and without input or output."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from typing import Any

from sonoran.backends.base import Backend
from sonoran.config import Verification
from sonoran.engine.drafter import Drafter
from sonoran.engine.kv import KVMemory
from sonoran.engine.round import Share, count_round, draft_request, record_round, round_event, run_round
from sonoran.engine.scheduler import Scheduler, Work
from sonoran.engine.sequence import Intake, Limits, Request, Sequence, TextTokens
from sonoran.engine.stats import EngineStats
from sonoran.engine.trace import Span, SpanLog
from sonoran.errors import ConfigError, SonoranError
from sonoran.sampling.params import SamplingParams
from sonoran.types import Outcome, RoundEvent


class EngineCore:
    """Requests go in with `add`, `step` runs a round, requests that end leave by themselves.

    Not thread-safe; `prepare` alone may be called from any thread. Between two steps every sequence is at a
    safe point: `cancel` frees all that a request holds. After an exception that interrupted a step, call
    `reset`.
    """

    def __init__(
        self,
        target: Backend,
        tokenizer: TextTokens,
        *,
        max_model_len: int | None = None,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 256,
        seed: int | None = None,
        prefix_caching: bool = True,
        drafter: Drafter | None = None,
        num_speculative_tokens: int = 0,
        longest_speculation: int = 0,
        verification: Verification = "coupled",
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.num_speculative_tokens = 0 if drafter is None else num_speculative_tokens
        # What is copied may be longer than what is drafted.
        self.longest_speculation = max(self.num_speculative_tokens, longest_speculation if drafter else 0)
        draft_context = None if drafter is None else drafter.max_context
        self.limits = Limits.of(target, max_model_len, self.longest_speculation, draft_context)
        self._intake = Intake(self.limits, tokenizer, seed, verification)
        self.kv = KVMemory(target, prefix_caching=prefix_caching)
        self.scheduler = Scheduler(self.kv, max_num_seqs, max_num_batched_tokens)
        self.stats = EngineStats()
        self.spans: SpanLog | None = None  # recorded while there is one
        self.watched = False  # whether `event` is wanted
        self.event: RoundEvent | None = None  # the last step's round; None when it was none, or failed
        self.requests: dict[str, Request] = {}
        self._eos_ids = tokenizer.eos_ids
        # Samples that wait until the first one of their request has read the prompt, to share its KV memory.
        self._held_back: dict[Sequence, list[Sequence]] = {}
        self._next_id = 0

    def prepare(
        self, request_id: str, prompt_token_ids: Seq[int], params: SamplingParams, prompt: str | None = None
    ) -> Request:
        """Check a request and make it, without queueing it.

        Raises ConfigError for token ids that the model does not have, CapacityError when it can never fit.
        """
        return self._intake.make(request_id, prompt_token_ids, params, prompt)

    def add(self, request: Request) -> None:
        """Queue a prepared request. Raises ConfigError when a request of that name is being served."""
        if request.request_id in self.requests:
            raise ConfigError(f"request {request.request_id!r} is being served already")
        self.requests[request.request_id] = request
        for sequence in request.sequences:
            sequence.id = self._next_id
            self._next_id += 1
        first, *others = request.sequences
        if others:
            self._held_back[first] = others
        self.scheduler.add(first)
        self.stats.num_requests += 1
        self.stats.num_prompt_tokens += len(request.prompt_token_ids)

    def cancel(self, request_id: str) -> Request | None:
        """End a request where it is and free what it holds; None when it is not being served."""
        request = self.requests.get(request_id)
        if request is not None:
            self.stats.num_cancelled += 1
            self._end(request)
        return request

    @property
    def busy(self) -> bool:
        """Whether there is anything left to do."""
        return bool(self.requests)

    def step(self) -> list[Request]:
        """Run one round; return the requests that have news, finished and failed ones included."""
        begin, self.event = time.perf_counter(), None
        works = self.scheduler.schedule()
        self._start(works, begin)
        if not works:
            return []
        try:
            result = run_round(works, self.target, self.drafter, self._eos_ids)
        except SonoranError as error:
            return [self._fail(request, error) for request in self._requests_of(works)]
        for share in result.shares:
            self._advance(share)
        news = self._settle(works)
        end = time.perf_counter()
        count_round(self.stats, result, end - begin)
        if self.spans is not None:
            record_round(self.spans, result, begin, end)
        if self.watched:
            self.event = round_event(result, end)
        return news

    def reset(self) -> list[Request]:
        """Cancel everything and forget all KV memory, whatever state an interruption left."""
        cancelled = list(self.requests.values())
        for request in cancelled:
            for sequence in request.sequences:
                sequence.text += sequence.stop.cancel().text
                sequence.table.blocks.clear()
        self.stats.num_cancelled += len(cancelled)
        self.requests.clear()
        self._held_back.clear()
        self.scheduler.waiting.clear()
        self.scheduler.running.clear()
        self.kv.reset()
        if self.drafter is not None:
            self.drafter.reset()
        return cancelled

    def check_invariants(self) -> None:
        """Raise RuntimeError when a block is lost or a reference leaked; idle, also in the drafter."""
        self.kv.check(sequence.table for sequence in self.scheduler.running)
        if not self.busy:
            if self.scheduler.running or self.scheduler.waiting or self._held_back:
                raise RuntimeError("sequences are left although every request has ended")
            if self.drafter is not None:
                self.drafter.check_invariants()

    def statistics(self, ask_worker: bool = True) -> dict[str, Any]:
        """Return totals since the engine was made, and what it holds now.

        Without `ask_worker` it may be called from any thread, and the numbers may be of different moments.
        """
        totals = self.stats.as_dict(self.longest_speculation)
        totals["num_running"] = len(self.scheduler.running)
        totals["num_waiting"] = len(self.scheduler.waiting)
        totals["num_preemptions"] = self.scheduler.num_preemptions
        totals["kv_usage"] = self.kv.usage
        if self.drafter is not None:
            totals["drafter"] = self.drafter.stats(ask_worker)
        return totals

    def start_trace(self, limit: int) -> None:
        """Record from now on, the newest `limit` spans of each side. A worker that is replaced meanwhile records none."""
        self.spans = SpanLog(limit)
        if self.drafter is not None:
            self.drafter.record(limit)

    def end_trace(self) -> dict[str, list[Span]]:
        """Stop recording and return the spans by lane; that of a worker is empty when it does not answer."""
        lanes = {"target": self.spans.spans() if self.spans is not None else []}
        self.spans = None
        drafted = self.drafter.record(0) if self.drafter is not None else None
        if drafted is not None:
            lanes["draft worker"] = drafted
        return lanes

    def close(self) -> None:
        """Free both models."""
        self.target.close()
        if self.drafter is not None:
            self.drafter.close()

    def _start(self, works: list[Work], now: float) -> None:
        for work in works:
            sequence = work.sequence
            if sequence.stats.started is None:
                sequence.stats.started = now
                self.stats.num_cached_tokens += sequence.num_cached if sequence.index == 0 else 0
                if self.drafter is not None and sequence.max_speculation:
                    self.drafter.admit(draft_request(work))

    def _advance(self, share: Share) -> None:
        """Move a sequence on by what was verified, cut where it stops, KV memory included."""
        work, verified = share.work, share.verified
        sequence = work.sequence
        if isinstance(verified, SonoranError):
            self.requests[sequence.request_id].error = verified
            return
        sequence.computed += work.count
        if verified is not None:
            advance = sequence.stop.advance(verified.tokens)
            share.emitted = advance.kept
            sequence.tokens += verified.tokens[: advance.kept]
            sequence.text += advance.text
            if sequence.grammar is not None:
                sequence.grammar.advance(verified.tokens[: advance.kept])
            if verified.logprobs is not None:
                sequence.logprobs += verified.logprobs[: advance.kept]
            sequence.computed = min(sequence.computed + verified.accepted, len(sequence.tokens))
            sequence.outcome = Outcome(verified.accepted, verified.bonus) if work.speculate else None
        self.kv.commit(sequence.table, sequence.tokens, sequence.computed)
        self.kv.truncate(sequence.table, len(sequence.tokens))

    def _settle(self, works: list[Work]) -> list[Request]:
        """Free what ended, let held-back samples start, and return the requests with news."""
        now = time.perf_counter()
        for work in works:
            sequence = work.sequence
            if len(sequence.tokens) == sequence.prompt_length:
                continue
            if sequence.stats.first_token is None:
                sequence.stats.first_token = now
            if sequence in self._held_back:
                self.scheduler.add_first(self._held_back.pop(sequence))
            if sequence.finish_reason is not None:
                self._free(sequence)
        news = []
        for request in self._requests_of(works):
            if request.error is not None:
                news.append(self._fail(request, request.error))
            elif any(len(s.tokens) > s.prompt_length for s in request.sequences):
                news.append(request)
                if request.finished:
                    del self.requests[request.request_id]
        return news

    def _requests_of(self, works: list[Work]) -> list[Request]:
        return [self.requests[name] for name in dict.fromkeys(work.sequence.request_id for work in works)]

    def _fail(self, request: Request, error: SonoranError) -> Request:
        request.error = error
        self._end(request)
        return request

    def _end(self, request: Request) -> None:
        """Cancel what is left of a request and forget it."""
        self._held_back.pop(request.sequences[0], None)
        for sequence in request.sequences:
            if sequence.finish_reason is None:
                sequence.text += sequence.stop.cancel().text
                self._free(sequence)
        self.requests.pop(request.request_id, None)

    def _free(self, sequence: Sequence) -> None:
        sequence.stats.finished = time.perf_counter()
        self.scheduler.remove(sequence)
        if self.drafter is not None and sequence.max_speculation:
            self.drafter.release(sequence.id)
