"""One client of a worker: its speculator, and the work that is advanced while the target verifies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from sonoran.errors import CompatibilityError
from sonoran.models.tokenizer.compatibility import num_shared
from sonoran.ssd.messages import (
    PROTOCOL_VERSION,
    Answer,
    Free,
    Hello,
    Prefill,
    Speculate,
    Speculations,
    ToWorker,
)
from sonoran.ssd.model import DraftModel
from sonoran.ssd.speculator import Speculator

_DONE = object()

INBOX_MESSAGES = 2048
INBOX_BYTES = 32 * 2**20
"""What of a client may wait: news of as many sequences as it may have, twice over."""


class SpeculatorLike(Protocol):
    """What drafts for one client. Everything but ``work`` must come back soon.

    ``prefill``, ``speculate``, ``free`` and ``close`` are never called while ``work`` is suspended between two
    passes: it ends first, or is closed.
    """

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
        """Forget sequences."""
        ...

    def stats(self) -> dict[str, Any]:
        """Return counters."""
        ...

    def trace(self, limit: int) -> dict[str, Any]:
        """Keep the newest ``limit`` spans from now on; return those kept so far, and the time on their clock."""
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
    num_tokens: int = 0  # of the vocabulary; 0: not known
    fingerprint_of: Callable[[int], str] | None = None  # of so many first tokens


class Session:
    """A client that was welcomed. ``heard`` is when it last spoke, ``used`` when it last wanted to draft, in seconds
    on the server's clock; ``peer`` is the process or the host that it is in.

    What it said and nobody has read yet waits in its inbox, so that it takes turns with the others; ``spent`` are the
    seconds that it had, or would have had if it had not been idle. What must not disturb the work under way is kept in
    ``postponed``, in order, for when it is done.
    """

    def __init__(self, speculator: SpeculatorLike, now: float, peer: str = "", spent: float = 0.0) -> None:
        self.heard = self.used = now
        self.peer, self.spent = peer, spent
        self.inbox: deque[tuple[ToWorker, int]] = deque()
        self.inbox_bytes = 0
        self.told_of_nonsense = False
        self.speculator = speculator
        self.postponed: deque[Prefill | Free] = deque()
        self._work: Iterator[None] | None = None
        self._has_news = False  # something to draft or read has come

    @property
    def busy(self) -> bool:
        """Whether it waits for anything."""
        return self.working or bool(self.inbox)

    def put(self, message: ToWorker, size: int) -> bool:
        """Keep a message of ``size`` bytes until it is the client's turn; False when too much waits already."""
        if len(self.inbox) >= INBOX_MESSAGES or self.inbox_bytes + size > INBOX_BYTES:
            return False
        self.inbox.append((message, size))
        self.inbox_bytes += size
        return True

    def take(self) -> ToWorker:
        """Return the message that has waited longest."""
        message, size = self.inbox.popleft()
        self.inbox_bytes -= size
        return message

    @property
    def suspended(self) -> bool:
        """Whether there is work between two of its passes."""
        return self._work is not None

    @property
    def working(self) -> bool:
        """Whether ``step`` has something to do."""
        return self.suspended or self._has_news

    def apply(self, message: Prefill | Free) -> None:
        """Start or forget sequences; not while work is suspended."""
        if isinstance(message, Free):
            self.speculator.free(message.sequences)
        else:
            self.speculator.prefill(message)
            self._has_news = True

    def speculate(self, message: Speculate) -> Speculations:
        """Answer, and have something to draft; not while work is suspended."""
        answer = self.speculator.speculate(message)
        self._has_news = True
        return answer

    def step(self) -> None:
        """Run the work on to its next forward pass."""
        work, self._work = self._work, None
        if work is None:
            self._has_news = False
            work = iter(self.speculator.work())
        if next(work, _DONE) is not _DONE:
            self._work = work

    def abandon(self) -> None:
        """Stop the work under way."""
        work, self._work = self._work, None
        if isinstance(work, Generator):
            work.close()

    def close(self) -> None:
        """Free everything that the client had."""
        self.abandon()
        self.speculator.close()


def check_fit(hello: Hello, service: Service) -> str:
    """Return the fingerprint of the tokens that both sides have, which the client compares with its own.

    Raises CompatibilityError when a client speaks another protocol, or about another vocabulary.
    """
    if hello.version != PROTOCOL_VERSION:
        raise CompatibilityError(
            f"the draft worker speaks version {PROTOCOL_VERSION} of the protocol, the engine version "
            f"{hello.version}; install the same version of sonoran on both sides"
        )
    if hello.fingerprint == service.fingerprint:
        return service.fingerprint
    shared = num_shared(hello.num_tokens, service.num_tokens) if hello.num_tokens else None
    fingerprint = service.fingerprint_of(shared) if shared and service.fingerprint_of else None
    # A target with more tokens than the draft sees for itself whether the draft's are its own first ones.
    if fingerprint is None or (hello.num_tokens <= service.num_tokens and fingerprint != hello.fingerprint):
        raise CompatibilityError(
            f"the vocabulary of the target ({hello.fingerprint[:12]}) is not that of the draft worker's model "
            f"{service.model} ({service.fingerprint[:12]}); choose a draft of the target's own family"
        )
    return fingerprint


def all_unknown(message: Speculate) -> Speculations:
    """Return the reply of a worker that lost every sequence of a round."""
    answers = [Answer(item.sequence, item.generation, False, "none", [], [], []) for item in message.items]
    return Speculations(message.round, answers, 0.0, 0.0)


def draft_service(model: DraftModel) -> Service:
    """Return the facts of a draft model, and a speculator for each client."""
    return Service(
        model=model.name,
        fingerprint=model.fingerprint,
        context_length=model.context_length,
        open=lambda hello: Speculator(model, hello),
        num_tokens=model.num_tokens,
        fingerprint_of=model.fingerprint_of,
    )
