"""Engines over toy models, and a reference that decodes one request alone."""

from __future__ import annotations

import math
from typing import Any

from sonoran.drafting.model import ModelDrafter
from sonoran.drafting.patience import Patience
from sonoran.engine.core import EngineCore
from sonoran.engine.sequence import Request
from sonoran.sampling.params import SamplingParams
from tests.toy_backend import ToyBackend
from tests.toy_tokenizer import ToyTokenizer

VOCAB = 64


def greedy(max_tokens: int = 24, **kwargs: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **kwargs)


PATIENT = Patience(most_lost_s=math.inf)
"""For tests that count what a worker does, on machines that may be busy: it is asked in every round."""


def model_drafter(salt: int = 5, noise: float = 1.5, **kwargs: Any) -> ModelDrafter:
    """A draft that agrees with the default target often, but not always."""
    vocab, least = kwargs.pop("vocab", None), kwargs.pop("least_chance", 0.0)
    backend = ToyBackend(salt=salt, noise=noise, **{"num_blocks": 128, **kwargs})
    if vocab is not None:
        backend.restrict_output(vocab)
    eos_ids = ToyTokenizer().eos_ids
    return ModelDrafter(backend, target_vocab=VOCAB, eos_ids=eos_ids, max_rows=64, least_chance=least)


def engine(target: ToyBackend | None = None, drafter: Any = None, k: int = 4, **kwargs: Any) -> EngineCore:
    return EngineCore(
        target or ToyBackend(),
        ToyTokenizer(VOCAB),
        drafter=drafter,
        num_speculative_tokens=k,
        **{"seed": 0, **kwargs},
    )


def drain(core: EngineCore, limit: int = 10_000) -> None:
    """Run until idle and check that nothing leaked."""
    for _ in range(limit):
        if not core.busy:
            break
        core.step()
        core.check_invariants()
    assert not core.busy, "the engine does not come to an end"
    core.check_invariants()
    assert core.kv.pool.available == core.kv.pool.num_blocks


def run(core: EngineCore, *jobs: tuple[list[int], SamplingParams]) -> list[Request]:
    """Serve all jobs together; return their requests in order."""
    requests = [core.prepare(f"r{i}", prompt, params) for i, (prompt, params) in enumerate(jobs)]
    for request in requests:
        core.add(request)
    drain(core)
    for request in requests:
        if request.error is not None:
            raise request.error
    return requests


def texts(requests: list[Request]) -> list[list[tuple[list[int], str, object, object]]]:
    """Everything of the results that may not depend on how they were computed."""
    return [
        [(s.output_ids, s.text, s.finish_reason, s.stop.stop_reason) for s in request.sequences]
        for request in requests
    ]


def alone(
    prompt: list[int], params: SamplingParams, **kwargs: Any
) -> list[tuple[list[int], str, object, object]]:
    """Decode one request autoregressively in a fresh engine without a prefix cache."""
    return texts(run(engine(prefix_caching=False, **kwargs), (prompt, params)))[0]
