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
BoolArray = NDArray[np.bool_]

FinishReason = Literal["stop", "length", "cancelled"]
Origin = Literal["primary", "draft", "ngram", "random", "copy", "none"]
"""Where a speculation came from: the cache (``primary``), a backup (``draft`` is just in time), or the text itself
(``copy``), which is preferred to both where it promises more."""

TokenOrigin = Literal["cache", "backup", "copy", "target"]
"""Where a token came from: an accepted one from the speculation cache, a backup or a copy, or the target's own."""


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


@dataclass(slots=True, repr=False)
class RequestOutput:
    """What a request returns; when streaming, ``outputs`` hold everything generated so far.

    ``prompt_logprobs``, if asked for, has an entry for each token of the prompt; the first one is None.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: dict[str, Any] = field(default_factory=dict)
    prompt_logprobs: list[TokenLogprob | None] | None = None

    def __repr__(self) -> str:
        """One line: what a notebook shows need not be every number."""
        texts = ", ".join(
            f"{len(o.token_ids)} tokens {_short(o.text)} ({o.finish_reason or 'going on'})"
            for o in self.outputs
        )
        return f"RequestOutput({self.request_id}: {len(self.prompt_token_ids)} tokens of prompt; {texts})"


def _short(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:57]!r}..."


@dataclass(frozen=True, slots=True)
class SampleRound:
    """One sample's part of a round. ``emitted`` ids are left after truncation; none while a prompt is read.

    ``origin`` is that of the ``proposed`` tokens, "none" without any, ``before`` that of the speculation whose outcome
    was looked up in a speculation cache, None when nothing was.
    """

    request_id: str
    index: int
    proposed: tuple[int, ...]
    accepted: int
    emitted: tuple[int, ...]
    origin: Origin
    before: Origin | None = None
    num_prompt_tokens: int = 0  # of the prompt, that were run

    @property
    def origins(self) -> tuple[TokenOrigin, ...]:
        """Where each emitted token came from."""
        names: dict[Origin, TokenOrigin] = {"primary": "cache", "copy": "copy"}
        drafted = names.get(self.origin, "backup")
        return tuple(drafted if i < self.accepted else "target" for i in range(len(self.emitted)))


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """A round of the engine: who took part, and seconds on ``time.perf_counter`` at which its parts began and ended.

    ``hidden_s`` and ``exposed_s`` are the draft worker's (see DraftRound), None when no worker was asked.
    """

    samples: tuple[SampleRound, ...]
    num_rows: int
    begin_s: float
    drafted_s: float  # the drafter has answered
    packed_s: float  # the target's pass begins
    ran_s: float
    end_s: float
    hidden_s: float | None = None
    exposed_s: float | None = None


@dataclass(frozen=True, slots=True)
class SampleDelta:
    """What is new of one generated text; ids, log-probabilities and text put together are those of the whole.

    ``round`` says where the tokens came from; it is None when no round made the news (a cancellation).
    """

    index: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    round: SampleRound | None = None


@dataclass(frozen=True, slots=True)
class RequestDelta:
    """What a round added to a request: the samples that have news. The last one is ``finished`` and has metrics.

    ``prompt_logprobs``, if asked for, come with the first one.
    """

    request_id: str
    samples: tuple[SampleDelta, ...]
    finished: bool
    event: RoundEvent | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    prompt_logprobs: list[TokenLogprob | None] | None = None
