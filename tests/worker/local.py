"""A speculator in the engine's own process: rounds are worked off in full, or in part, between two proposals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from sonoran.config import SpeculationSettings
from sonoran.engine.drafter import DraftRequest
from sonoran.engine.kv import KVMemory
from sonoran.sampling.proposals import Speculation
from sonoran.ssd.messages import Hello, Item, Prefill, Speculate, decode_law
from sonoran.ssd.model import DraftModel
from sonoran.ssd.speculator import Speculator
from tests.toy_backend import ToyBackend
from tests.toy_tokenizer import ToyTokenizer


def make_speculator(model: DraftModel, vocab_size: int = 64, **settings: Any) -> Speculator:
    values = SpeculationSettings(**settings)
    return Speculator(model, Hello(2, "toy", vocab_size, list(ToyTokenizer().eos_ids), values))


def toy_model(noise: float = 1.5, salt: int = 5, num_blocks: int = 256, **toy: Any) -> DraftModel:
    backend = ToyBackend(noise=noise, salt=salt, num_blocks=num_blocks, **toy)
    return DraftModel(backend, KVMemory(backend), "toy", "toy", None, 16)


class LocalDrafter:
    """The engine's Drafter over a Speculator; ``passes`` of every round's work are done, None means all."""

    def __init__(self, model: DraftModel, passes: Any = None, **settings: Any) -> None:
        self.model = model
        self.speculator = make_speculator(model, **settings)
        self.origins: list[str] = []
        self._passes = passes if callable(passes) else lambda: passes
        self._known: dict[int, int] = {}
        self._round = 0

    @property
    def max_context(self) -> int | None:
        return self.model.context_length

    def admit(self, request: DraftRequest) -> None:
        self._known[request.sequence_id] = len(request.tokens)
        self.speculator.prefill(
            Prefill(
                request.sequence_id,
                1,
                list(request.tokens),
                request.prompt_length,
                request.seed,
                request.params,
            )
        )
        sequence = self.speculator._sequences[request.sequence_id]
        work = self.speculator.work()
        while sequence.unread and next(work, self) is not self:
            pass

    def propose(self, requests: Sequence[DraftRequest]) -> list[Speculation]:
        items = []
        for r in requests:
            if r.sequence_id not in self._known:
                self.admit(r)
            base = self._known[r.sequence_id]
            accepted = -1 if r.outcome is None else r.outcome.accepted
            items.append(Item(r.sequence_id, 1, base, r.tokens[base:], r.wanted, accepted))
            self._known[r.sequence_id] = len(r.tokens)
        self._round += 1
        reply = self.speculator.speculate(Speculate(self._round, items))
        for _ in islice(self.speculator.work(), self._passes()):
            pass
        speculations = []
        for r, answer in zip(requests, reply.answers, strict=True):
            if not answer.known:
                self.admit(r)
            self.origins.append(answer.origin)
            laws = tuple(decode_law(law) for law in answer.laws)
            speculations.append(Speculation(tuple(answer.tokens), laws))
        return speculations

    def release(self, sequence_id: int) -> None:
        self._known.pop(sequence_id, None)
        self.speculator.free([sequence_id])

    def reset(self) -> None:
        for sequence_id in list(self._known):
            self.release(sequence_id)

    def check_invariants(self) -> None:
        pool = self.model.kv.pool
        if pool.available != pool.num_blocks:
            raise RuntimeError(f"{pool.num_blocks - pool.available} blocks of the draft are lost")

    def stats(self) -> dict[str, Any]:
        return self.speculator.stats()

    def close(self) -> None:
        self.speculator.close()
