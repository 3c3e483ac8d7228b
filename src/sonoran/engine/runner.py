"""The engine in a thread of its own: requests come in from any thread, results go out to listeners.

Interruptions (Ctrl-C, a cancelled task, a client that went away) never reach the engine's state: they happen
in the caller's thread, and become a cancellation that the engine's thread carries out between two rounds.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sonoran.engine.core import EngineCore
from sonoran.engine.outputs import DeltaReader, request_output
from sonoran.engine.sequence import Request
from sonoran.errors import SonoranError
from sonoran.types import RequestDelta, RequestOutput, RoundEvent

log = logging.getLogger(__name__)

T = TypeVar("T")
Listener = Callable[["RequestOutput | SonoranError"], None]
"""Called in the engine's thread with each news of a request; the last one is finished, or an error."""

DeltaListener = Callable[["RequestDelta | SonoranError"], None]
"""The same with what is new."""

Observer = Callable[[RoundEvent], None]
"""Called in the engine's thread after every round, before those who asked for it hear of their requests."""


class EngineClosedError(SonoranError):
    """Something was asked of an engine after `close`, or in another process than its own."""


class ReaderGoneError(Exception):
    """Raised by a listener when nobody will read any more; its request is cancelled without a word."""


@dataclass(frozen=True, slots=True)
class _Subscription:
    listener: Callable[[Any], None]
    streaming: bool
    deltas: DeltaReader | None = None


class EngineThread:
    """Owns an EngineCore. The thread starts with the first request and ends with `close`.

    Threads do not survive a fork, so a child of the process that made this can only make an engine of its own.
    """

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._listeners: dict[str, _Subscription] = {}
        self._observers: list[Observer] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._process = os.getpid()

    def submit(self, request: Request, listener: Listener, *, streaming: bool) -> None:
        """Queue a prepared request. With `streaming`, the listener hears of every round, else of the end."""
        self._submit(request, _Subscription(listener, streaming))

    def submit_deltas(self, request: Request, listener: DeltaListener) -> None:
        """Queue a prepared request whose listener hears what each round added."""
        self._submit(request, _Subscription(listener, True, DeltaReader(request)))

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Tell somebody of every round from now on; return what ends it. An observer that raises hears no more."""
        self._send(lambda: self._observers.append(observer))

        def end() -> None:
            if observer in self._observers:
                self._observers.remove(observer)

        return lambda: self._send(end)

    def _submit(self, request: Request, subscription: _Subscription) -> None:
        def start() -> None:
            try:
                self.core.add(request)
            except SonoranError as error:
                _deliver(request.request_id, subscription.listener, error)
            else:
                self._listeners[request.request_id] = subscription

        self._send(start)

    def cancel(self, request_id: str) -> None:
        """End a request at the next safe point; its listener hears of it. Harmless when it has ended."""

        def stop() -> None:
            request = self.core.cancel(request_id)
            if request is not None:
                self._notify(request)

        self._send(stop)

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the engine's thread between two rounds and return its result."""
        answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((True, function()))
            except Exception as error:
                answers.put((False, error))

        self._send(run)
        succeeded, value = answers.get()
        if not succeeded:
            raise value
        result: T = value
        return result

    def close(self) -> None:
        """Cancel what runs, end the thread and free the models; calling twice, or in a forked child, is harmless."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
            self._commands.put(None)
        if thread is not None:
            thread.join()
        self.core.close()

    def _send(self, command: Callable[[], None]) -> None:
        if os.getpid() != self._process:  # before the lock, which somebody may hold for ever here
            raise EngineClosedError(
                f"this engine belongs to process {self._process}, of which this one ({os.getpid()}) is a fork; "
                "make the LLM in the child, after the fork"
            )
        with self._lock:
            if self._closed:
                raise EngineClosedError("the engine is closed; make a new LLM")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sonoran-engine", daemon=True)
                self._thread.start()
            self._commands.put(command)

    def _run(self) -> None:
        while self._run_commands():
            self.core.watched = bool(self._observers) or any(s.deltas for s in self._listeners.values())
            try:
                news = self.core.step()
            except Exception as error:
                self._fail_all(error)
                continue
            if self.core.event is not None:
                self._tell_observers(self.core.event)
            for request in news:
                self._notify(request, self.core.event)
        for request in self.core.reset():
            self._notify(request)

    def _run_commands(self) -> bool:
        """Run the queued commands, waiting for one when idle; return False once the engine is to end."""
        while True:
            try:
                command = self._commands.get(block=not self.core.busy)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _tell_observers(self, event: RoundEvent) -> None:
        for observer in tuple(self._observers):
            try:
                observer(event)
            except Exception as error:
                log.warning("an observer of rounds failed, and hears no more: %s", error)
                self._observers.remove(observer)

    def _notify(self, request: Request, event: RoundEvent | None = None) -> None:
        ended = request.finished
        subscription = self._listeners.get(request.request_id)
        if subscription is None or not (ended or subscription.streaming):
            return
        if ended:
            del self._listeners[request.request_id]
        news: RequestDelta | RequestOutput | SonoranError
        k = self.core.longest_speculation
        if request.error is not None:
            news = request.error
        elif subscription.deltas is not None:
            news = subscription.deltas.read(event, k)
            if not (news.samples or news.finished):
                return
        else:
            news = request_output(request, k)
        if not _deliver(request.request_id, subscription.listener, news):
            # Nobody hears the rest, so it need not be computed.
            self._listeners.pop(request.request_id, None)
            self.core.cancel(request.request_id)

    def _fail_all(self, error: Exception) -> None:
        """Report an error that is nobody's fault but ours to everyone, and start over with empty memory."""
        log.error("a round failed; all requests end and KV memory is cleared", exc_info=error)
        failure = SonoranError(f"the engine failed and starts over: {type(error).__name__}: {error}")
        for request in self.core.reset():
            request.error = failure
            self._notify(request)


def _deliver(
    request_id: str, listener: Callable[[Any], None], news: RequestDelta | RequestOutput | SonoranError
) -> bool:
    """Tell a listener; return whether it wants to hear more."""
    try:
        listener(news)
    except ReaderGoneError:
        return False
    except Exception as error:
        log.warning("the listener of request %s failed: %s", request_id, error)
        return False
    return True
