"""The engine's side of a draft worker: rounds with a deadline, over a connection that looks after itself.

The engine's thread asks; a thread in the background sends heartbeats, notices that the worker is gone, and starts
it or connects to it again. A lock keeps them off each other's socket. A worker that does not answer in time
costs one deadline; from then on rounds return at once, until it has spoken again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, Protocol

import zmq

from sonoran.errors import SonoranError, WorkerError
from sonoran.ssd.messages import (
    MAX_FREED,
    Free,
    Hello,
    Item,
    Prefill,
    Speculate,
    Speculations,
    StatsRequest,
    Welcome,
)
from sonoran.worker.connection import Connection, Link, Remote, State
from sonoran.worker.process import Keeper, Local
from sonoran.worker.transport import check_address

log = logging.getLogger(__name__)

_BUSY_PAUSE_S, _IDLE_PAUSE_S = 0.02, 0.1
LONGEST_WAIT_S = 2.0
"""Seconds that a round waits for a reply at most, whatever heartbeat the worker announces, unless told otherwise."""

_STATS_WAIT_S = 0.25
_LOCAL_PATIENCE_S = 5.0


class DraftClient(Protocol):
    """One engine's draft worker, as a drafter uses it: a ``WorkerClient``, or an ``InProcessWorker``."""

    @property
    def state(self) -> State:
        """``connecting``, ``up``, ``silent`` (missed a deadline, may still have everything) or ``down``."""
        ...

    @property
    def epoch(self) -> int:
        """Number of the session; what was sent in an earlier one must be sent again."""
        ...

    @property
    def welcome(self) -> Welcome | None:
        """How the worker introduced itself last."""
        ...

    @property
    def worker_pid(self) -> int | None:
        """Process id of a worker of our own; None without one."""
        ...

    def prefill(self, message: Prefill) -> bool:
        """Announce a sequence; False when the worker cannot be told now. Raises WorkerError if it is too long."""
        ...

    def free(self, sequences: Iterable[int]) -> None:
        """Have the worker forget sequences, now or when it is back."""
        ...

    def speculate(self, items: Sequence[Item]) -> Speculations | None:
        """Ask for the speculations of a round; None when there are none in time, or the worker is not up."""
        ...

    def worker_stats(
        self, trace: int | None = None, patience_s: float = _STATS_WAIT_S
    ) -> dict[str, Any] | None:
        """Return the worker's own counters, None when it does not tell in time; `trace` as in StatsRequest."""
        ...

    def stats(self) -> dict[str, Any]:
        """Return the state of the connection, and what went wrong so far."""
        ...

    def close(self) -> None:
        """End the session, and a worker of our own; twice is harmless."""
        ...


class WorkerClient:
    """A ``DraftClient`` over a socket. ``start`` it, then ask; all methods may be called from any thread."""

    def __init__(
        self,
        hello: Hello | None,
        place: Remote | Local,
        fingerprint_of: Callable[[int], str] | None = None,
        *,
        longest_wait_s: float = LONGEST_WAIT_S,
    ) -> None:
        """Prepare. ``fingerprint_of`` gives that of the target's first tokens, for a draft that has fewer.

        A round waits for ``longest_wait_s`` at most, and never longer than a heartbeat.

        Raises ConfigError for an address that cannot be used.

        Without a `hello` and with a Future as the options of its place, it starts a worker that waits for ``brief``.
        """
        self.place = place
        if isinstance(place, Remote):
            check_address(place.address, place.keys)
        self._keeper = Keeper(place) if isinstance(place, Local) else None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        patience = place.patience_s if isinstance(place, Remote) else _LOCAL_PATIENCE_S
        self._connection = Connection(hello, self._link, patience, fingerprint_of)
        self._lock = threading.Lock()
        self._last_session = time.monotonic()
        self._round = 0
        self._longest_wait_s = longest_wait_s
        self._pending_frees: set[int] = set()
        self._settled, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="draft-worker-client", daemon=True)
        self._begun = self._closed = False
        self._process = os.getpid()

    def begin(self) -> None:
        """Start to connect, and the worker before, in the background; ``start`` waits for what comes of it."""
        if not self._begun:
            self._begun = True
            self._thread.start()

    def brief(
        self, hello: Hello, options: object, fingerprint_of: Callable[[int], str] | None = None
    ) -> None:
        """Tell a worker that was started early what it serves, and whom."""
        self._connection.hello, self._connection.fingerprint_of = hello, fingerprint_of
        if isinstance(self.place, Local) and isinstance(self.place.options, Future):
            self.place.options.set_result(options)

    @property
    def loaded(self) -> tuple[int, int] | None:
        """Bytes that a worker of our own has loaded so far and bytes in all, once it has begun."""
        worker = self._keeper.worker if self._keeper else None
        return worker.progress if worker is not None else None

    def start(self, progress: Callable[[int, int], None] | None = None) -> Welcome:
        """Connect, if need be after starting the worker; return how it introduced itself.

        ``progress`` is called with the bytes loaded and the bytes in all. Raises CompatibilityError when the
        worker declines, WorkerError when there is none, and whatever a worker of our own reports.
        """
        self.begin()
        seen: tuple[int, int] | None = None
        try:
            while not self._settled.wait(_BUSY_PAUSE_S):
                now = self.loaded
                if progress is not None and now is not None and now != seen:
                    seen = now
                    progress(*now)
        except BaseException:
            self.close()
            raise
        if self._connection.welcome is not None:
            return self._connection.welcome
        error = self._connection.error or WorkerError("the draft worker was closed while it started")
        self.close()
        if isinstance(self.place, Remote) and isinstance(error, WorkerError):
            raise WorkerError(
                f"no draft worker at {self.place.address}: {error}; is it running, and are the keys right?"
            )
        raise error

    @property
    def state(self) -> State:
        """``connecting``, ``up``, ``silent`` (missed a deadline, may still have everything) or ``down``."""
        return self._connection.state

    @property
    def epoch(self) -> int:
        """Number of the session; what was told in an earlier one must be told again."""
        return self._connection.epoch

    @property
    def welcome(self) -> Welcome | None:
        """How the worker introduced itself last."""
        return self._connection.welcome

    @property
    def error(self) -> SonoranError | None:
        """Why there is no session at present."""
        return self._connection.error

    @property
    def worker_pid(self) -> int | None:
        """Process id of a worker of our own."""
        worker = self._keeper.worker if self._keeper else None
        return worker.pid if worker is not None else None

    def prefill(self, message: Prefill) -> bool:
        """Announce a sequence; False when the worker cannot be told now. Raises WorkerError if it is too long."""
        with self._lock:
            now = time.monotonic()
            self._send_pending_frees(now)
            sent = self._connection.send(message, now)
            if sent:  # a name that is used again must not be freed afterwards
                self._pending_frees.discard(message.sequence)
            return sent

    def free(self, sequences: Iterable[int]) -> None:
        """Have the worker forget sequences, now or when it is back."""
        with self._lock:
            if self.state != "down":  # the next session knows no sequence
                self._pending_frees.update(sequences)
            self._send_pending_frees(time.monotonic())

    def speculate(self, items: Sequence[Item]) -> Speculations | None:
        """Ask for the speculations of a round; None when there are none in time, or the worker is not up."""
        if self.state != "up":
            return None
        with self._lock:
            connection, begin = self._connection, time.monotonic()
            self._round += 1
            connection.awaited = self._round
            try:
                if not connection.send(Speculate(self._round, list(items)), begin):
                    return None
                return self._await_reply(begin)
            finally:
                connection.awaited = None

    def worker_stats(
        self, trace: int | None = None, patience_s: float = _STATS_WAIT_S
    ) -> dict[str, Any] | None:
        """Return the worker's own counters, None when it does not tell in time; `trace` as in StatsRequest."""
        with self._lock:
            self._connection.worker_stats = None
            if not self._connection.send(StatsRequest(trace), time.monotonic()):
                return None
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            with self._lock:
                self._connection.receive(time.monotonic())
                if self._connection.worker_stats is not None:
                    return self._connection.worker_stats
            time.sleep(0.001)  # a round may go first
        return None

    def stats(self) -> dict[str, Any]:
        """Return the state of the connection, and what went wrong so far."""
        restarts = max(0, self._keeper.starts - 1) if self._keeper else 0
        return {"state": self.state, "restarts": restarts, **asdict(self._connection.counters)}

    def close(self) -> None:
        """Say goodbye and end a worker of our own; twice is harmless, and in a forked child nothing happens."""
        if os.getpid() != self._process:
            return
        self._closing.set()
        if isinstance(self.place, Local) and isinstance(self.place.options, Future):
            self.place.options.cancel()  # else its worker waits for them
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._connection.close_link(goodbye=True)
            self._connection.state = "down"
        if self._keeper is not None:
            self._keeper.stop()
        self._context.term()
        self._settled.set()

    def _await_reply(self, begin: float) -> Speculations | None:
        connection, keeper = self._connection, self._keeper
        limit, garbage = min(connection.heartbeat_s, self._longest_wait_s), connection.counters.garbage
        while True:
            now = time.monotonic()
            left = begin + limit - now
            if left <= 0.0:
                connection.missed(now, limit)
                return None
            message = connection.receive(now, wait=True)
            if isinstance(message, Speculations) and message.round == self._round:
                connection.kept()
                return message
            if connection.state != "up" or connection.counters.garbage != garbage:
                return None
            if message is None and keeper is not None and not keeper.alive:
                connection.fall_silent("its process has ended", now)
                return None

    def _link(self) -> Link:
        if isinstance(self.place, Remote):
            return Link(self._context, self.place.address, self.place.keys)
        if self._keeper is None or self._keeper.worker is None:
            raise WorkerError("the draft worker has not been started")
        worker = self._keeper.worker
        return Link(self._context, worker.address, worker.keys)

    def _send_pending_frees(self, now: float) -> None:
        names = sorted(self._pending_frees)[:MAX_FREED]
        if names and self._connection.send(Free(names), now):
            self._pending_frees.difference_update(names)

    def _run(self) -> None:
        """Supervise worker and connection until the client is closed."""
        while not self._closing.is_set():
            now = time.monotonic()
            try:
                self._supervise_process(now)
                with self._lock:
                    self._maintain_connection(now)
            except SonoranError as error:
                with self._lock:
                    self._connection.fail(error, now)
            except Exception as error:
                # No memory, no descriptors, no threads: such a spell may pass, and this thread has to see that.
                log.error("looking after the draft worker failed", exc_info=error)
                with self._lock:
                    reason = f"looking after it failed: {type(error).__name__}: {error}"
                    self._connection.lose(WorkerError(reason), now)
            if self._connection.epoch or self._connection.error is not None:
                self._settled.set()
            self._closing.wait(_IDLE_PAUSE_S if self.state == "up" else _BUSY_PAUSE_S)

    def _supervise_process(self, now: float) -> None:
        if self._keeper is None:
            return
        connection = self._connection
        due = connection.state == "down" and now >= connection.retry_at
        error = self._keeper.look(now, self._last_session, due)
        if error is not None:
            with self._lock:
                connection.lose(error, now)

    def _maintain_connection(self, now: float) -> None:
        connection, epoch = self._connection, self._connection.epoch
        if connection.state == "down":
            if now < connection.retry_at or (self._keeper is not None and not self._keeper.ready):
                return
            connection.begin(now)
        connection.tick(now)
        if connection.epoch != epoch:
            self._pending_frees.clear()
        if connection.state == "up":
            self._last_session = now
            self._send_pending_frees(now)
