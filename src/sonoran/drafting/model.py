"""A draft model in the engine's own process: the baseline that drafts while the target waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sonoran.backends.base import Backend
from sonoran.backends.rows import TrunkPart, forward_in_passes
from sonoran.backends.vocabulary import DraftVocabulary
from sonoran.engine.drafter import DraftRequest
from sonoran.engine.kv import BlockTable, KVMemory
from sonoran.engine.trace import Span
from sonoran.sampling.drafts import draft_chance, draft_sample
from sonoran.sampling.proposals import EMPTY, ProposalDistribution, Speculation
from sonoran.types import FloatArray


@dataclass(slots=True)
class _Memory:
    """What the draft's KV memory holds of a sequence: `computed` committed tokens, then `drafted` ones."""

    table: BlockTable = field(default_factory=BlockTable)
    computed: int = 0
    drafted: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Draft:
    """A sequence being drafted for; `pending` tokens go to the next pass, from position `start`."""

    request: DraftRequest
    memory: _Memory
    start: int
    pending: list[int]
    tokens: list[int] = field(default_factory=list)
    distributions: list[ProposalDistribution] = field(default_factory=list)
    chance_all_accepted: float = 1.0  # of `tokens`


class ModelDrafter:
    """Drafts K tokens in K passes of a small model, batched over the sequences.

    Its KV memory follows the target's text by itself: what was drafted and accepted is kept, what was
    rejected is dropped, and whatever is missing (the prompt, rounds with K = 0, a prefix that only the target
    had cached) is caught up in the first pass. An end token of the draft ends nothing.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        target_vocab: int,
        eos_ids: Sequence[int] = (),
        max_rows: int = 256,
        prefix_caching: bool = True,
        vocabulary: DraftVocabulary | None = None,
        least_chance: float,
    ) -> None:
        """Draft with `backend`; ids from `target_vocab` on are never proposed, nor any outside `vocabulary`, which
        grows with the texts. A speculation ends where the draft gives less than `least_chance` that all of it is
        accepted."""
        self.backend = backend
        self._least_chance = least_chance
        self._vocabulary = vocabulary
        self.kv = KVMemory(backend, prefix_caching=prefix_caching)
        self.max_rows = max_rows
        self._eos_ids = tuple(eos_ids)
        self._width = min(target_vocab, backend.config.vocab_size)
        self._memories: dict[int, _Memory] = {}
        self._passes = 0
        self._rows = 0
        self._without_memory = 0

    @property
    def max_context(self) -> int | None:
        """Tokens that the draft can see."""
        return min(self.backend.config.max_position, self.kv.capacity)

    def admit(self, request: DraftRequest) -> None:
        """Do nothing: the prompt is read in the first `propose`; the same process gains nothing by haste."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Speculation]:
        """Draft for all sequences at once; one that finds no KV memory gets an empty speculation."""
        present = {request.sequence_id for request in requests}
        drafts = [self._open(request, present) for request in requests]
        step = 0
        while active := [draft for draft in drafts if draft is not None and self._wants_more(draft, step)]:
            logits, passes = forward_in_passes(
                self.backend,
                [TrunkPart(draft.pending, draft.start, 1, draft.memory.table.blocks) for draft in active],
                self.max_rows,
            )
            self._passes += passes
            self._rows += sum(len(draft.pending) for draft in active)
            for row, draft in zip(logits, active, strict=True):
                self._extend(draft, row)
            step += 1
        return [self._close(draft) for draft in drafts]

    def see(self, tokens: Sequence[int]) -> None:
        """Let the draft propose the tokens of a text that it drafts for."""
        if self._vocabulary is not None:
            self._vocabulary.add(tokens)

    def release(self, sequence_id: int) -> None:
        """Free the KV memory of a sequence."""
        memory = self._memories.pop(sequence_id, None)
        if memory is not None:
            self.kv.close(memory.table)

    def reset(self) -> None:
        """Forget every sequence and every cached prefix."""
        self._memories.clear()
        self.kv.reset()

    def check_invariants(self) -> None:
        """Raise RuntimeError when blocks leaked, or when sequences are left that were never released."""
        self.kv.check(memory.table for memory in self._memories.values())
        if self._memories:
            raise RuntimeError(f"the draft still holds sequences {sorted(self._memories)}")

    def stats(self, ask_worker: bool = True) -> dict[str, Any]:
        """Return passes and rows of the draft model, and drafts that were given up for want of memory."""
        return {
            "num_passes": self._passes,
            "num_rows": self._rows,
            "num_without_memory": self._without_memory,
            "kv_usage": self.kv.usage,
        }

    def record(self, limit: int) -> list[Span] | None:
        """Return None: there is no worker."""
        return None

    def close(self) -> None:
        """Free the draft model."""
        self.backend.close()

    def _open(self, request: DraftRequest, present: set[int]) -> _Draft | None:
        tokens, length = request.tokens, len(request.tokens)
        memory = self._memories.get(request.sequence_id)
        if memory is None:
            found = self.kv.open(self.kv.match(tokens))
            memory = _Memory(found, len(found.blocks) * self.kv.block_size)
            self._memories[request.sequence_id] = memory
        computed = memory.computed
        for token in memory.drafted:
            # The last token always runs again: its logits are wanted.
            if computed >= length - 1 or token != tokens[computed]:
                break
            computed += 1
        memory.computed, memory.drafted = computed, []
        pending = tokens[computed:]
        self.see(pending)
        if not self._reserve(memory, length + request.wanted - 1, present):
            self._without_memory += 1
            return None
        return _Draft(request, memory, computed, pending)

    def _reserve(self, memory: _Memory, end: int, present: set[int]) -> bool:
        """Make room, if need be at the cost of sequences that sit this round out; they catch up later."""
        if self.kv.reserve(memory.table, memory.computed, end):
            return True
        for sequence_id in [other for other in self._memories if other not in present]:
            self.release(sequence_id)
            if self.kv.reserve(memory.table, memory.computed, end):
                return True
        return False

    def _wants_more(self, draft: _Draft, step: int) -> bool:
        return step < draft.request.wanted and draft.chance_all_accepted >= self._least_chance_of(draft)

    def _least_chance_of(self, draft: _Draft) -> float:
        asked = draft.request.least_chance
        return self._least_chance if asked is None else asked

    def _extend(self, draft: _Draft, row: FloatArray) -> None:
        request = draft.request
        position = len(request.tokens) + len(draft.tokens)
        prefix = request.tokens + draft.tokens if request.params.reads_prefix else ()
        token, q = draft_sample(
            request.params.verification,
            row[: self._width],
            prefix,
            request.prompt_length,
            request.params,
            request.seed,
            position,
            self._eos_ids,
        )
        draft.start += len(draft.pending)
        draft.pending = [token]
        draft.tokens.append(token)
        if self._least_chance_of(draft) > 0.0 and len(draft.tokens) < request.wanted:
            draft.chance_all_accepted *= draft_chance(
                request.params.verification,
                row[: self._width],
                token,
                q,
                request.params,
                request.seed,
                position,
            )
        if q is not None:
            draft.distributions.append(q)

    def _close(self, draft: _Draft | None) -> Speculation:
        if draft is None or not draft.tokens:
            return EMPTY
        memory, committed = draft.memory, draft.request.tokens
        memory.computed = len(committed)
        memory.drafted = draft.tokens[:-1]
        self.kv.commit(memory.table, committed, len(committed))
        return Speculation(tuple(draft.tokens), tuple(draft.distributions))
