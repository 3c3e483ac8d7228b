"""What a request returns: texts, whole or by what each round added, and metrics with vLLM's names and definitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sonoran.engine.sequence import Request, Sequence
from sonoran.engine.stats import CacheStats, SpeculationStats, Times
from sonoran.types import (
    CompletionOutput,
    RequestDelta,
    RequestOutput,
    RoundEvent,
    SampleDelta,
    SampleRound,
    TokenLogprob,
)


def request_output(request: Request, num_spec_tokens: int) -> RequestOutput:
    """Return a snapshot of a request; with metrics once it has ended. `num_spec_tokens` is the engine's K."""
    finished = request.finished
    return RequestOutput(
        request_id=request.request_id,
        prompt=request.prompt,
        prompt_token_ids=request.prompt_token_ids,
        outputs=[_completion(sequence) for sequence in request.sequences],
        finished=finished,
        metrics=request_metrics(request, num_spec_tokens) if finished else {},
        prompt_logprobs=prompt_logprobs(request),
    )


def prompt_logprobs(request: Request) -> list[TokenLogprob | None] | None:
    """Return what was asked for of the prompt's tokens, None for the first one; None when nothing was."""
    if request.params.prompt_logprobs is None:
        return None
    return [None, *request.sequences[0].prompt_logprobs]


@dataclass(slots=True)
class Told:
    """How much of a sample was told already."""

    num_tokens: int = 0
    num_logprobs: int = 0
    num_characters: int = 0
    finished: bool = False


class DeltaReader:
    """Tells of a request what is new since the last time."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._first = True
        self._told = [Told(sequence.prompt_length) for sequence in request.sequences]

    def read(self, event: RoundEvent | None, num_spec_tokens: int) -> RequestDelta:
        """Return the news after a round, or, without one, after a cancellation; `num_spec_tokens` is the engine's K."""
        request, finished = self._request, self._request.finished
        rounds = {
            sample.index: sample
            for sample in (event.samples if event is not None else ())
            if sample.request_id == request.request_id
        }
        news = (
            self._sample(sequence, told, rounds.get(sequence.index))
            for sequence, told in zip(request.sequences, self._told, strict=True)
        )
        return RequestDelta(
            request.request_id,
            tuple(sample for sample in news if sample is not None),
            finished,
            event,
            request_metrics(request, num_spec_tokens) if finished else {},
            self._prompt_logprobs(),
        )

    def _prompt_logprobs(self) -> list[TokenLogprob | None] | None:
        """Return those of the prompt, with the first news."""
        first, self._first = self._first, False
        return prompt_logprobs(self._request) if first else None

    def _sample(self, sequence: Sequence, told: Told, of_round: SampleRound | None) -> SampleDelta | None:
        ended = sequence.finish_reason is not None
        if told.finished or not (ended or len(sequence.tokens) > told.num_tokens):
            return None
        delta = SampleDelta(
            sequence.index,
            tuple(sequence.tokens[told.num_tokens :]),
            sequence.text[told.num_characters :],
            tuple(sequence.logprobs[told.num_logprobs :]) if sequence.params.logprobs is not None else None,
            sequence.finish_reason,
            sequence.stop.stop_reason,
            of_round,
        )
        told.num_tokens, told.num_characters = len(sequence.tokens), len(sequence.text)
        told.num_logprobs, told.finished = len(sequence.logprobs), ended
        return delta


def request_metrics(request: Request, num_spec_tokens: int) -> dict[str, Any]:
    """Return the metrics of a request that has ended; times are in seconds.

    ``ttft_s`` is from arrival to the first token of any sample; ``tpot_s`` is (end - first token) / (tokens -
    1), averaged over the samples weighted by their tokens, and ``tokens_per_s`` is 1 / ``tpot_s``: the prompt excluded.
    ``prompt_tokens_per_s`` is what had to be read of the prompt / (first token - start). ``e2e_tokens_per_s`` is output
    tokens / (end - arrival). Each is None where there is nothing to divide. ``time_s`` sums the rounds that the request
    took part in, which it may have shared.
    ``speculative_decoding`` (vLLM's shape, and what `CacheStats` counts) is there when a speculation was verified
    or a draft worker was asked for one.
    """
    sequences = request.sequences
    generated = sum(len(s.tokens) - s.prompt_length for s in sequences)
    started = [s.stats.started for s in sequences if s.stats.started is not None]
    first = [s.stats.first_token for s in sequences if s.stats.first_token is not None]
    end = max((s.stats.finished for s in sequences if s.stats.finished is not None), default=request.arrival)
    times, speculation, cache = Times(), SpeculationStats(), CacheStats()
    for sequence in sequences:
        times.add(sequence.stats.times)
        speculation.add(sequence.stats.speculation)
        cache.add(sequence.stats.cache)
    tpot = _time_per_output_token(sequences)
    read = len(request.prompt_token_ids) - sequences[0].num_cached
    metrics: dict[str, Any] = {
        "num_prompt_tokens": len(request.prompt_token_ids),
        "num_cached_tokens": sequences[0].num_cached,
        "num_generated_tokens": generated,
        "num_rounds": sum(s.stats.num_rounds for s in sequences),
        "num_preemptions": sum(s.num_preemptions for s in sequences),
        "seed": request.seed,
        "queue_s": min(started) - request.arrival if started else None,
        "ttft_s": min(first) - request.arrival if first else None,
        "tpot_s": tpot,
        "e2e_s": end - request.arrival,
        "tokens_per_s": _rate(1, tpot),
        "prompt_tokens_per_s": _rate(read, min(first) - min(started) if first and started else None),
        "e2e_tokens_per_s": _rate(generated, end - request.arrival),
        "time_s": times.as_dict(),
    }
    of_cache = cache.as_dict()
    if speculation.num_spec_steps or of_cache:
        metrics["speculative_decoding"] = {
            **speculation.as_dict(num_spec_tokens),
            **of_cache,
            "per_step_drafted": [n for s in sequences for n in s.stats.per_step_drafted],
            "per_step_accepted": [n for s in sequences for n in s.stats.per_step_accepted],
        }
    return metrics


def _completion(sequence: Sequence) -> CompletionOutput:
    return CompletionOutput(
        index=sequence.index,
        text=sequence.text,
        token_ids=sequence.output_ids,
        finish_reason=sequence.finish_reason,
        stop_reason=sequence.stop.stop_reason,
        logprobs=list(sequence.logprobs) if sequence.params.logprobs is not None else None,
    )


def _rate(count: int, seconds: float | None) -> float | None:
    return count / seconds if seconds else None


def _time_per_output_token(sequences: list[Sequence]) -> float | None:
    seconds, steps = 0.0, 0
    for sequence in sequences:
        stats = sequence.stats
        count = len(sequence.tokens) - sequence.prompt_length
        if count > 1 and stats.first_token is not None and stats.finished is not None:
            seconds += stats.finished - stats.first_token
            steps += count - 1
    return seconds / steps if steps else None
