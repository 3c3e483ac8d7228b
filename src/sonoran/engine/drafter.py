"""The protocol between the engine and whatever drafts for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from sonoran.engine.trace import Span
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.proposals import Speculation
from sonoran.types import Origin, Outcome


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One sequence's part of a round, as a drafter sees it.

    `tokens` are committed and belong to the engine: they only ever grow, and a drafter must not change them.
    `outcome` is the result of verifying the speculation that this drafter proposed last for the sequence; it
    is None when nothing was verified since (the first round, a round with K = 0, after preemption). `least_chance`
    overrides where the drafter ends a speculation, None leaves it to its own setting.
    """

    sequence_id: int
    tokens: list[int]
    prompt_length: int
    wanted: int  # K: more tokens are refused, fewer are welcome
    params: SamplingParams
    seed: int
    outcome: Outcome | None = None
    least_chance: float | None = None


@dataclass(frozen=True, slots=True)
class DraftAnswer:
    """How a speculation from a speculation cache came about.

    `before` is the origin of the speculation whose outcome was looked up, None when nothing was verified before.
    `fan_out` is F_0..F_K that was in force when that outcome was predicted; empty if nothing was predicted.
    """

    origin: Origin
    before: Origin | None
    fan_out: tuple[int, ...] = ()


@dataclass(slots=True)
class DraftRound:
    """A question to a draft worker: seconds that the target waited, and what the worker says of its work.

    `hidden_s` is draft work done while the target verified, `exposed_s` draft work that the reply waited for.
    `answers` are by sequence; those that the worker did not know, or answered with nonsense, are not there.
    """

    waited_s: float
    hidden_s: float = 0.0
    exposed_s: float = 0.0
    answers: dict[int, DraftAnswer] = field(default_factory=dict)

    @property
    def hit(self) -> bool:
        """Whether every answer was there already, from the cache or as a copy, and there was one."""
        return bool(self.answers) and all(a.origin in ("primary", "copy") for a in self.answers.values())


class Drafter(Protocol):
    """Proposes speculations for many sequences at once.

    The engine calls, from one thread: `admit` when a sequence that may speculate starts (its prompt is known,
    so that a drafter may read it beside the target), `propose` once per round with the sequences that
    speculate in it, `release` when a sequence ended or was cancelled. A sequence may skip any number of
    rounds; what a drafter knows of it is then a prefix of `tokens`.
    """

    @property
    def max_context(self) -> int | None:
        """Tokens that the draft can see, or None when there is no limit; K is cut to it."""
        ...

    def admit(self, request: DraftRequest) -> None:
        """Hear of a sequence before its first `propose`; nothing has to happen."""
        ...

    def propose(self, requests: Sequence[DraftRequest]) -> list[Speculation]:
        """Return a speculation of at most `wanted` tokens for each request, in order; it may be empty."""
        ...

    def release(self, sequence_id: int) -> None:
        """Forget a sequence; harmless when it was never seen."""
        ...

    def reset(self) -> None:
        """Forget every sequence."""
        ...

    def check_invariants(self) -> None:
        """Raise RuntimeError when memory of released sequences is still held."""
        ...

    def stats(self, ask_worker: bool = True) -> dict[str, Any]:
        """Return counters of the drafter's own, for reports, and with `ask_worker` those of a worker.

        Without, it may be called from any thread while the engine runs.
        """
        ...

    def record(self, limit: int) -> list[Span] | None:
        """Record the newest `limit` spans of a worker from now on, 0: none; return those that it has recorded.

        None when there is no worker: what is drafted in this process is part of the engine's own trace.
        """
        ...

    def close(self) -> None:
        """Free everything; calling twice is harmless."""
        ...


@runtime_checkable
class CachingDrafter(Protocol):
    """A drafter that answers from a speculation cache, and says how."""

    @property
    def last_round(self) -> DraftRound | None:
        """The last `propose`; None when nobody was asked in it."""
        ...
