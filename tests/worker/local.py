"""SSD over toy models without a worker process: the engine's drafter with a worker in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sonoran.config import SpeculationSettings
from sonoran.drafting.ssd import SsdDrafter
from sonoran.engine.drafter import DraftRequest
from sonoran.engine.kv import KVMemory
from sonoran.sampling.proposals import Speculation
from sonoran.ssd.messages import PROTOCOL_VERSION, Hello
from sonoran.ssd.model import DraftModel
from sonoran.worker.in_process import InProcessWorker
from sonoran.worker.session import draft_service
from tests.engine.helpers import PATIENT
from tests.toy_backend import ToyBackend
from tests.toy_tokenizer import ToyTokenizer


def toy_model(noise: float = 1.5, salt: int = 5, num_blocks: int = 256, **toy: Any) -> DraftModel:
    backend = ToyBackend(noise=noise, salt=salt, num_blocks=num_blocks, **toy)
    return DraftModel(backend, KVMemory(backend), "toy", "toy", None, 16)


def toy_hello(**settings: Any) -> Hello:
    eos_ids = list(ToyTokenizer().eos_ids)
    return Hello(PROTOCOL_VERSION, "toy", 64, eos_ids, SpeculationSettings(**settings))


class LocalDrafter(SsdDrafter):
    """Remembers where speculations came from; ``passes`` of every round's work are done, None means all."""

    def __init__(self, model: DraftModel, passes: int | None = None, **settings: Any) -> None:
        hello = toy_hello(**settings)
        self.model, self.worker = model, InProcessWorker(hello, draft_service(model), passes=passes)
        self.origins: list[str] = []
        super().__init__(self.worker, target_vocab=hello.vocab_size, patience=PATIENT)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Speculation]:
        found = super().propose(requests)
        if self.last_round is not None:
            self.origins += [answer.origin for answer in self.last_round.answers.values()]
        return found

    def check_invariants(self) -> None:
        super().check_invariants()
        pool = self.model.kv.pool
        if pool.available != pool.num_blocks:
            raise RuntimeError(f"{pool.num_blocks - pool.available} blocks of the draft are lost")
