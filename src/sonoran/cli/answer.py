"""An answer as it comes: its text, the reading of the prompt before it, the line of speed behind it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from sonoran.cli.progress import reading_progress
from sonoran.llm import LLM
from sonoran.sampling.params import SamplingParams
from sonoran.types import FinishReason, RoundEvent, SampleDelta, TokenOrigin

ENOUGH_DRAFTED = 32
"""Fewer drafted tokens say nothing about acceptance."""

Write = Callable[[SampleDelta], None]


@dataclass(slots=True)
class Answer:
    """What was generated; ``cancelled`` with what there was when the user stopped it."""

    prompt_token_ids: Sequence[int]
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    origins: list[TokenOrigin] = field(default_factory=list)
    finish_reason: FinishReason = "cancelled"
    stop_reason: int | str | None = None
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def cancelled(self) -> bool:
        """Whether the user stopped it."""
        return self.finish_reason == "cancelled"

    def as_json(self, model: str) -> dict[str, Any]:
        """Return the JSON document of one answer."""
        prompt_tokens, new_tokens = len(self.prompt_token_ids), len(self.token_ids)
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": new_tokens,
                "total_tokens": prompt_tokens + new_tokens,
            },
            "model": model,
            "metrics": self.metrics,
        }


def write_text(delta: SampleDelta) -> None:
    """Write what is new to standard output."""
    sys.stdout.write(delta.text)
    sys.stdout.flush()


def generate_answer(llm: LLM, prompt: Sequence[int], params: SamplingParams, write: Write | None) -> Answer:
    """Generate and write the text as it comes. Ctrl-C ends it, and what there is is returned."""
    answer = Answer(prompt)
    begin = time.perf_counter()
    first = last = begin
    try:
        with reading_progress(len(prompt)) as reading, closing(llm.deltas(prompt, params)) as deltas:

            def watch(event: RoundEvent) -> None:
                reading.read(sum(sample.num_prompt_tokens for sample in event.samples))

            end_watch = llm.observe(watch)
            try:
                for delta in deltas:
                    last = time.perf_counter()
                    if not answer.token_ids:
                        first = last
                        reading.end()
                        end_watch()
                    for sample in delta.samples:
                        answer.text += sample.text
                        answer.token_ids += sample.token_ids
                        answer.origins += sample.round.origins if sample.round is not None else ()
                        answer.finish_reason = sample.finish_reason or answer.finish_reason
                        answer.stop_reason = sample.stop_reason
                        if write is not None:
                            write(sample)
                    answer.metrics = delta.metrics
            finally:
                end_watch()
    except KeyboardInterrupt:
        answer.finish_reason = "cancelled"
        answer.metrics = _metrics_so_far(answer, begin, first, last)
    return answer


def _metrics_so_far(answer: Answer, begin: float, first: float, last: float) -> dict[str, Any]:
    """Return the metrics that a cancelled request leaves, by this side's clock."""
    count = len(answer.token_ids)
    tpot = (last - first) / (count - 1) if count > 1 and last > first else None
    return {
        "num_prompt_tokens": len(answer.prompt_token_ids),
        "num_cached_tokens": 0,
        "num_generated_tokens": count,
        "ttft_s": first - begin if count else None,
        "tpot_s": tpot,
        "tokens_per_s": 1 / tpot if tpot else None,
        "prompt_tokens_per_s": None,
    }


def summary(answer: Answer, params: SamplingParams, max_model_len: int) -> str:
    """Return one line: tokens, the prompt and its speed, tokens per second after the first, speculation, a cut end."""
    metrics = answer.metrics
    known, size = metrics["num_cached_tokens"], metrics["num_prompt_tokens"]
    parts = [f"{_tokens(metrics['num_generated_tokens'])}"]
    if metrics["tokens_per_s"] is not None:
        parts[0] += f", {metrics['tokens_per_s']:.1f} tokens/s after the first"
    prompt = f"prompt of {_tokens(size)}" + (f", {known} of them known," if known else "")
    if metrics["ttft_s"] is not None:
        prompt += f" in {metrics['ttft_s']:.2f} s"
    if metrics["prompt_tokens_per_s"] is not None and size - known >= ENOUGH_DRAFTED:
        prompt += f" ({metrics['prompt_tokens_per_s']:.0f} tokens/s)"
    parts.append(prompt)
    parts += speculation(metrics)
    if answer.cancelled:
        parts.append("stopped by you")
    elif answer.finish_reason == "length" and len(answer.token_ids) == params.max_tokens:
        parts.append(f"stopped at --max-tokens {params.max_tokens}")
    elif answer.finish_reason == "length":
        parts.append(f"stopped at the end of the context, --max-model-len {max_model_len}")
    return "; ".join(parts)


def speculation(metrics: dict[str, Any]) -> list[str]:
    """Return how well drafts did, once there were enough of them to tell."""
    found = metrics.get("speculative_decoding")
    if not found or found["num_draft_tokens"] < ENOUGH_DRAFTED:
        return []
    line = (
        f"{found['mean_acceptance_length']:.2f} tokens per verification, "
        f"{found['draft_acceptance_rate']:.0%} of drafted tokens accepted"
    )
    if found.get("num_cache_lookups"):
        line += f", {found['cache_hit_rate']:.0%} hits in the speculation cache"
    return [line]


def _tokens(count: int) -> str:
    return f"{count} token{'' if count == 1 else 's'}"
