"""Predictions against the engine: run configurations and compare tokens per second."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sonoran.errors import ConfigError
from sonoran.planning.profile.placement import Workload
from sonoran.planning.profile.predict import Prediction
from sonoran.planning.profile.profile import Measured
from sonoran.sampling.params import SamplingParams
from sonoran.types import RequestOutput


class Engine(Protocol):
    """The part of ``LLM`` that is needed here."""

    def generate(self, prompts: Any, sampling_params: Any = None) -> list[RequestOutput]: ...

    def close(self) -> None: ...


def check_predictions(
    predictions: Sequence[Prediction],
    make: Callable[[Prediction], Engine],
    prompts: Sequence[Sequence[int]],
    workload: Workload,
    *,
    max_tokens: int = 64,
    repeats: int = 2,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Measured]:
    """Run each prediction on the prompts, ``workload.batch`` at a time, and return what came of it.

    The first group of prompts is run once before the clock counts. Text is generated to ``max_tokens``; speeds
    leave out everything before the first token. Raises ConfigError for too few tokens or no prompts.
    """
    if max_tokens < 2 or repeats < 1 or not prompts:
        raise ConfigError(
            f"checking predictions needs prompts, at least 2 tokens and 1 repeat, got {len(prompts)} prompts, "
            f"{max_tokens} tokens, {repeats} repeats"
        )
    groups = _groups(prompts, workload.batch)
    found = []
    for index, p in enumerate(predictions):
        if progress is not None:
            progress(p.label, index, len(predictions))
        engine = make(p)
        try:
            _run(engine, groups[0], workload, min(max_tokens, 8), 0)
            rates = [
                _run(engine, group, workload, max_tokens, seed) for seed in range(repeats) for group in groups
            ]
        finally:
            engine.close()
        middle = statistics.median(rates)
        spread = (max(rates) - min(rates)) / middle if len(rates) > 1 else 0.0
        found.append(Measured(p.label, p.tokens_per_s, middle, spread, workload.batch, workload.temperature))
    return found


def _groups(prompts: Sequence[Sequence[int]], batch: int) -> list[list[list[int]]]:
    """Return prompts in groups of the batch size; a single short group is filled up from its beginning."""
    whole = [list(prompt) for prompt in prompts]
    if len(whole) < batch:
        whole = [whole[i % len(whole)] for i in range(batch)]
    return [whole[i : i + batch] for i in range(0, len(whole) - batch + 1, batch)]


def _run(engine: Engine, group: list[list[int]], workload: Workload, max_tokens: int, seed: int) -> float:
    """Return tokens per second of a batch: the sum of what its sequences reach side by side."""
    params = [
        SamplingParams(
            temperature=workload.temperature,
            seed=1000 * seed + i,
            max_tokens=max_tokens,
            ignore_eos=True,
            verification=workload.verification,
        )
        for i in range(len(group))
    ]
    total = 0.0
    for output in engine.generate(group, params):
        seconds = output.metrics["e2e_s"] - output.metrics["ttft_s"]
        total += (len(output.outputs[0].token_ids) - 1) / max(seconds, 1e-9)
    return total
