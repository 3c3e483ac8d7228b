"""One client of a worker: its speculator, and the work that is advanced while the target verifies."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from sonoran.draftworker.messages import Answer, Hello, Prefill, Speculate, Speculations

_DONE = object()


class SpeculatorLike(Protocol):
    """What drafts for one client. Everything but ``work`` must come back soon."""

    def prefill(self, message: Prefill) -> None:
        """Start a sequence, or start it over; its tokens are read by ``work``."""
        ...

    def speculate(self, message: Speculate) -> Speculations:
        """Look outcomes up and answer, if need be after drafting just in time."""
        ...

    def work(self) -> Iterator[None]:
        """Draft for the next round, yielding after every forward pass; may be closed at any of them."""
        ...

    def free(self, sequences: list[int]) -> None:
        """Forget sequences; may be called while ``work`` is suspended."""
        ...

    def stats(self) -> dict[str, Any]:
        """Return counters."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


@dataclass(frozen=True, slots=True)
class Service:
    """What a worker offers: the facts of its model, and a speculator for each client that says hello."""

    model: str
    fingerprint: str  # of the vocabulary
    context_length: int  # tokens
    open: Callable[[Hello], SpeculatorLike]


class Session:
    """A client that was welcomed. ``heard`` is when it last spoke, in seconds on the server's clock."""

    def __init__(self, speculator: SpeculatorLike, now: float) -> None:
        self.heard = now
        self.told_of_nonsense = False
        self._speculator = speculator
        self._work: Iterator[None] | None = None
        self._has_news = False  # something came that the work under way may not have seen

    @property
    def working(self) -> bool:
        """Whether ``step`` has something to do."""
        return self._work is not None or self._has_news

    def prefill(self, message: Prefill) -> None:
        """Start a sequence; it is read by the steps that follow."""
        self._speculator.prefill(message)
        self._has_news = True

    def speculate(self, message: Speculate) -> Speculations:
        """Abandon the work on the previous round, and answer."""
        self.abandon()
        answer = self._speculator.speculate(message)
        self._has_news = True
        return answer

    def step(self) -> None:
        """Run the work on to its next forward pass."""
        if self._work is None:
            self._has_news = False
            self._work = iter(self._speculator.work())
        work, self._work = self._work, None
        if next(work, _DONE) is not _DONE:
            self._work = work

    def free(self, sequences: list[int]) -> None:
        """Forget sequences."""
        self._speculator.free(sequences)

    def stats(self) -> dict[str, Any]:
        """Return the speculator's counters."""
        return self._speculator.stats()

    def abandon(self) -> None:
        """Stop the work under way."""
        work, self._work = self._work, None
        self._has_news = False
        if isinstance(work, Generator):
            work.close()

    def close(self) -> None:
        """Free everything that the client had."""
        self.abandon()
        self._speculator.close()


def all_unknown(message: Speculate) -> Speculations:
    """Return the reply of a worker that lost every sequence of a round."""
    answers = [Answer(item.sequence, item.generation, False, "none", [], [], []) for item in message.items]
    return Speculations(message.round, answers, 0.0, 0.0)
