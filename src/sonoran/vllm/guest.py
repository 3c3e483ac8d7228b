"""What happens between two steps of vLLM's target: recognise the rows, ask the draft worker, count. Knows no vLLM."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sonoran.config import MAX_NUM_SEQS
from sonoran.drafting.ssd import SsdDrafter
from sonoran.engine.drafter import DraftAnswer, DraftRequest
from sonoran.engine.stats import EngineStats
from sonoran.engine.trace import SpanLog
from sonoran.sampling.params import SamplingParams
from sonoran.types import IntArray
from sonoran.vllm.rows import Decoded, Rows, Tracked

KEEP_STEPS = 16
"""Steps without a sequence after which the worker may forget it: it ended, most likely. Told anew, it costs a prompt."""


@dataclass(slots=True)
class Asked:
    """Seconds of steps, by what they went into, and how often: what the proposer costs the target."""

    steps: int = 0
    waited_s: float = 0.0
    own_s: float = 0.0  # everything in the proposer but waiting


class Guest:
    """One engine's sequences, and their drafter. Not thread-safe.

    ``params`` are what outcomes are predicted by, lengths are in tokens. ``microbatches`` take turns, so that a
    sequence is seen once in so many steps.
    """

    def __init__(
        self,
        drafter: SsdDrafter,
        *,
        num_speculative_tokens: int,
        max_model_len: int,
        params: SamplingParams,
        microbatches: int = 1,
    ) -> None:
        self.drafter = drafter
        self.stats = EngineStats()
        self.asked = Asked()
        self.spans: SpanLog | None = None  # recorded while there is one
        self._k = num_speculative_tokens
        self._longest = max_model_len
        self._params = params
        self._rows = Rows(KEEP_STEPS * microbatches, MAX_NUM_SEQS)
        self._answers: dict[int, DraftAnswer] = {}  # to what is being verified, by sequence
        self._ended: float | None = None  # when the last call returned

    def step(
        self, emitted: Sequence[Sequence[int]], lengths: Sequence[int] | IntArray, tokens: IntArray
    ) -> list[list[int]]:
        """Take in a step and return what to verify next, for each row at most K tokens; see ``Rows.observe``."""
        begin = time.perf_counter()
        found = self._rows.observe(emitted, lengths, tokens)
        for name in found.gone:
            self._answers.pop(name, None)
            self.drafter.release(name)
        for sequence in found.prompts:
            self.drafter.admit(self._request(sequence, self._k))
        asking: list[tuple[Decoded, DraftRequest]] = []
        for decoded in found.decoded:
            self._count(decoded, len(emitted[decoded.row]))
            room = self._room(decoded.sequence)
            if room > 0:
                asking.append((decoded, self._request(decoded.sequence, room, decoded)))
        proposals: list[list[int]] = [[] for _ in emitted]
        speculations = self.drafter.propose([request for _, request in asking])
        for (decoded, _), speculation in zip(asking, speculations, strict=True):
            decoded.sequence.proposed = speculation.tokens
            proposals[decoded.row] = list(speculation.tokens)
        self._close_round(begin)
        return proposals

    def reset(self) -> None:
        """Forget every sequence."""
        self._rows.clear()
        self._answers.clear()
        self.drafter.reset()

    def _room(self, sequence: Tracked) -> int:
        """Return how many tokens may be proposed: a bonus token follows them, and the draft has to see them."""
        length = len(sequence.tokens)
        seen = self.drafter.max_context
        return min(self._k, self._longest - length - 1, self._k if seen is None else seen - length)

    def _request(self, sequence: Tracked, wanted: int, decoded: Decoded | None = None) -> DraftRequest:
        outcome = decoded.outcome if decoded is not None else None
        return DraftRequest(
            sequence.id,
            sequence.tokens,
            sequence.prompt_length,
            wanted,
            self._params,
            seed=0,
            outcome=outcome,
        )

    def _count(self, decoded: Decoded, emitted: int) -> None:
        """Count the verification of what was proposed, before it is replaced."""
        answer = self._answers.pop(decoded.sequence.id, None)
        if answer is None or decoded.outcome is None:
            return
        self.stats.cache.record_answer(answer, emitted)
        if decoded.proposed:
            self.stats.speculation.record(len(decoded.proposed), decoded.outcome.accepted, emitted)

    def _close_round(self, begin: float) -> None:
        end = time.perf_counter()
        round_s = end - (begin if self._ended is None else self._ended)
        asked = self.drafter.last_round
        self.asked.steps += 1
        waited = 0.0
        if asked is not None:
            waited = asked.waited_s
            self._answers.update(asked.answers)
            self.stats.cache.record_round(asked, round_s)
        self.asked.waited_s += waited
        self.asked.own_s += end - begin - waited
        if self.spans is not None:
            if self._ended is not None:
                self.spans.add("target step", self._ended, begin)
            self.spans.add("ask the draft worker", begin, end, waited_ms=1e3 * waited)
        self._ended = end
