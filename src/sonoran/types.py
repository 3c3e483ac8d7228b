"""Plain data shared by every layer: outcomes, speculations, and what a request returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
Float64Array = NDArray[np.float64]
IntArray = NDArray[np.int32]
Int64Array = NDArray[np.int64]

FinishReason = Literal["stop", "length", "cancelled"]
Origin = Literal["primary", "draft", "ngram", "random", "none"]
"""Where a speculation came from: the cache (``primary``) or a backup (``draft`` is just in time)."""


class Outcome(NamedTuple):
    """Result of one verification: ``accepted`` draft tokens, then the ``bonus`` token of the target."""

    accepted: int
    bonus: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of an emitted token under the target, with the top alternatives ``(id, logprob)``."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class CompletionOutput:
    """One generated text. ``token_ids``, ``text`` and ``logprobs`` all end at the same token."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprob] | None = None


@dataclass(slots=True)
class RequestOutput:
    """What a request returns; when streaming, ``outputs`` hold everything generated so far."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: dict[str, Any] = field(default_factory=dict)
