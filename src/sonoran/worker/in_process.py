"""A draft worker in the calling process, without socket or thread: for tests, and for debugging the draft.

Everything between the engine and the speculator is there, the coding of the messages included; what is missing is the
connection. The draft's work is done where the engine calls, so that a debugger steps from the target's round into the
draft's, every run is the same, and nothing is hidden: SSD is slower than AR here.

    draft = load_draft_model(WorkerConfig(model="qwen2.5-coder-0.5b-instruct"))
    hello = Hello(PROTOCOL_VERSION, draft.fingerprint, target.config.vocab_size, eos_ids, settings)
    worker = InProcessWorker(hello, draft_service(draft))
    drafter = SsdDrafter(worker, target_vocab=target.config.vocab_size)
    core = EngineCore(target, tokenizer, drafter=drafter, num_speculative_tokens=4)
    llm = LLM.from_core(core, tokenizer)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import msgspec

from sonoran.errors import SonoranError
from sonoran.ssd.messages import (
    PROTOCOL_VERSION,
    Free,
    Hello,
    Item,
    Prefill,
    Speculate,
    Speculations,
    Welcome,
    encode,
)
from sonoran.worker.connection import Counters, State
from sonoran.worker.session import Service, Session, all_unknown, check_fit
from sonoran.worker.transport import DEFAULT_HEARTBEAT_S

log = logging.getLogger(__name__)

T = TypeVar("T")
Message = TypeVar("Message", Prefill, Speculate, Speculations)


class InProcessWorker:
    """A ``DraftClient`` that is its own worker.

    After every prefill and every answer the draft works before the call returns: ``passes`` forward passes at most,
    as if the target's next question came then, or all that there is to do when that is None. ``passes``, ``state``
    and ``epoch`` may be set between two rounds, to play an early outcome or a worker that goes and comes back.
    ``session.speculator`` is the draft's side itself.
    """

    def __init__(self, hello: Hello, service: Service, *, passes: int | None = None) -> None:
        """Raises CompatibilityError when the draft does not fit the target, ConfigError for impossible settings."""
        fingerprint = check_fit(hello, service)
        self.session = Session(service.open(hello), now=0.0)
        self.passes = passes
        self.state: State = "up"
        self.epoch = 1
        self.welcome: Welcome | None = Welcome(
            PROTOCOL_VERSION,
            fingerprint,
            service.model,
            service.context_length,
            DEFAULT_HEARTBEAT_S,
            service.num_tokens,
        )
        self.worker_pid: int | None = None
        self._counters = Counters(sessions=1)
        self._round = 0

    def prefill(self, message: Prefill) -> bool:
        """Start a sequence and read its prompt; False when the worker is not up."""
        if self.state != "up":
            return False
        arrived = _over_the_wire(message)
        self._refusable(lambda: self.session.apply(arrived))
        self._work()
        return True

    def free(self, sequences: Iterable[int]) -> None:
        """Forget sequences."""
        self.session.apply(Free(list(sequences)))

    def speculate(self, items: Sequence[Item]) -> Speculations | None:
        """Answer a round and draft for the next one; None when the worker is not up."""
        if self.state != "up":
            return None
        self._round += 1
        question = _over_the_wire(Speculate(self._round, list(items)))
        reply = self._refusable(lambda: self.session.speculate(question))
        self._work()
        return _over_the_wire(reply if reply is not None else all_unknown(question))

    def worker_stats(self, trace: int | None = None, patience_s: float = 0.0) -> dict[str, Any] | None:
        """Return the draft's own counters; `trace` as in StatsRequest."""
        speculator = self.session.speculator
        return {
            **speculator.stats(),
            **({} if trace is None else speculator.trace(trace)),
            "num_clients": 1,
        }

    def stats(self) -> dict[str, Any]:
        """Return what a connection tells: its state, and refusals."""
        return {"state": self.state, "restarts": 0, **asdict(self._counters)}

    def close(self) -> None:
        """Free what the sequences held; the draft model is the caller's. Twice is harmless."""
        self.state = "down"
        self.session.close()

    def _work(self) -> None:
        done = 0
        while self.session.working and (self.passes is None or done < self.passes):
            self._refusable(self.session.step)
            done += 1
        self.session.abandon()

    def _refusable(self, call: Callable[[], T]) -> T | None:
        """Refuse what a worker would refuse; a mistake of ours is raised, where a worker would drop the session."""
        try:
            return call()
        except SonoranError as error:
            self._counters.refusals += 1
            log.warning("the draft worker refuses: %s", error)
            return None


def _over_the_wire(message: Message) -> Message:
    """Return a message as it would arrive. Raises WorkerError when it is too long."""
    return msgspec.msgpack.decode(encode(message), type=type(message))
