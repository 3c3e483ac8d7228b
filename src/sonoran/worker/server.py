"""The worker's loop: replies go first, then each client's drafting moves on by one forward pass, in turns.

Between two passes the loop looks for messages, so that a question waits for one pass at most. Idle, it sleeps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import zmq

from sonoran.errors import SonoranError, WorkerError
from sonoran.ssd.messages import (
    HELLO_FIRST,
    PROTOCOL_VERSION,
    Bye,
    Free,
    Heartbeat,
    Hello,
    Prefill,
    Refusal,
    Speculate,
    Stats,
    StatsRequest,
    ToClient,
    ToWorker,
    Welcome,
    decode_to_worker,
    encode,
)
from sonoran.worker.keys import Keys
from sonoran.worker.session import Service, Session, all_unknown, check_fit
from sonoran.worker.transport import DEFAULT_HEARTBEAT_S, HIGH_WATER_MARK, Endpoint, Gate

log = logging.getLogger(__name__)

EVICTED_AFTER = 5
"""Heartbeats without a word after which a client is gone."""

MAX_CLIENTS = 64

_YIELD_S = 50e-6
"""Pause between replies and drafting. The thread that really sends them may share its core with the draft: without
the pause, it was measured to wait for 2 to 5 ms."""


def serve(
    service: Service,
    address: str,
    *,
    keys: Keys | None = None,
    heartbeat_s: float = DEFAULT_HEARTBEAT_S,
    stop_fds: Sequence[int] = (),
    on_ready: Callable[[], None] = lambda: None,
    before_exit: Callable[[Callable[[], None]], None] = lambda _: None,
) -> None:
    """Serve clients at ``address`` until one of ``stop_fds`` is readable.

    ``on_ready`` is called when clients can connect, and ``before_exit`` with what has to be done if the process ends
    without coming back from here. Raises ConfigError, WorkerError when it cannot listen.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    gate = Gate(context, keys) if keys is not None else None
    try:
        endpoint = Endpoint(context, address, keys)
        before_exit(endpoint.remove_file)
        try:
            server = Server(service, endpoint.socket, heartbeat_s, gate)
            on_ready()
            server.run(stop_fds)
        finally:
            endpoint.close()
    finally:
        if gate is not None:
            gate.close()
        context.term()


class Server:
    """All clients of one worker, in one thread."""

    def __init__(
        self, service: Service, socket: zmq.Socket[bytes], heartbeat_s: float, gate: Gate | None = None
    ) -> None:
        self._service, self._socket, self._gate = service, socket, gate
        self._heartbeat_s = heartbeat_s
        self._sessions: dict[bytes, Session] = {}
        self._has_replied = False

    def run(self, stop_fds: Sequence[int] = ()) -> None:
        """Serve until one of ``stop_fds`` is readable, then free all that the clients had."""
        poller = zmq.Poller()
        for readable in (self._socket, *stop_fds, *([self._gate.socket] if self._gate else [])):
            poller.register(readable, zmq.POLLIN)
        turn = time.monotonic()
        try:
            while True:
                working = any(session.working for session in self._sessions.values())
                ready = dict(poller.poll(0 if working else int(1e3 * self._heartbeat_s)))
                if any(fd in ready for fd in stop_fds):
                    return
                if self._gate is not None and self._gate.socket in ready:
                    self._gate.answer()
                if self._socket in ready:
                    self._receive()
                now = time.monotonic()
                self._evict(now, now - turn)
                turn = now
                if self._has_replied:
                    self._has_replied = False
                    time.sleep(_YIELD_S)
                self._advance()
        finally:
            for identity in list(self._sessions):
                self._drop(identity, "the worker stops")

    def _receive(self) -> None:
        """Handle what has arrived, in order; replies leave at once."""
        for _ in range(HIGH_WATER_MARK):
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._handle(identity, frames)

    def _handle(self, identity: bytes, frames: list[bytes]) -> None:
        session = self._sessions.get(identity)
        if session is not None:
            session.heard = time.monotonic()
        try:
            if len(frames) != 1:
                raise WorkerError(f"a message has one part, not {len(frames)}")
            message = decode_to_worker(frames[0])
        except WorkerError as error:
            if session is not None and not session.told_of_nonsense:
                session.told_of_nonsense = True
                log.warning("client %s: %s", identity.hex(), error)
            self._send(identity, Refusal(str(error)))
            return
        self._answer(identity, session, message)

    def _answer(self, identity: bytes, session: Session | None, message: ToWorker) -> None:
        try:
            reply = self._dispatch(identity, session, message)
            if reply is not None:
                self._send(identity, reply)
        except Exception as error:
            reason = self._failed(identity, error)
            if isinstance(message, Speculate):
                self._send(identity, all_unknown(message))
            self._send(identity, Refusal(reason))

    def _dispatch(self, identity: bytes, session: Session | None, message: ToWorker) -> ToClient | None:
        if isinstance(message, Hello):
            return self._welcome(identity, message)
        if isinstance(message, Bye):
            self._drop(identity, "it said goodbye")
            return None
        if session is None:
            return Refusal(HELLO_FIRST)
        if isinstance(message, Speculate):
            self._has_replied = True
            self._catch_up(identity, session)
            return session.speculate(message) if identity in self._sessions else all_unknown(message)
        if isinstance(message, Prefill | Free):
            if session.suspended and len(session.postponed) < HIGH_WATER_MARK:
                session.postponed.append(message)
                return None
            self._catch_up(identity, session)
            session.apply(message)
        elif isinstance(message, Heartbeat):
            return message
        elif isinstance(message, StatsRequest):
            trace = {} if message.trace is None else session.speculator.trace(message.trace)
            return Stats({**session.speculator.stats(), **trace, "num_clients": len(self._sessions)})
        return None

    def _catch_up(self, identity: bytes, session: Session) -> None:
        """Abandon the work under way, and do what was postponed for its sake."""
        session.abandon()
        while session.postponed and identity in self._sessions:
            self._answer(identity, session, session.postponed.popleft())

    def _welcome(self, identity: bytes, hello: Hello) -> ToClient:
        self._drop(identity, "it begins anew")
        service = self._service
        check_fit(hello, service)
        if len(self._sessions) >= MAX_CLIENTS:
            raise WorkerError(f"the draft worker has {MAX_CLIENTS} clients already, which is all it takes")
        self._sessions[identity] = Session(service.open(hello), time.monotonic())
        log.info("client %s came; %d in all", identity.hex(), len(self._sessions))
        return Welcome(
            PROTOCOL_VERSION, service.fingerprint, service.model, service.context_length, self._heartbeat_s
        )

    def _advance(self) -> None:
        """Move the work of the next client on by a forward pass."""
        for identity, session in list(self._sessions.items()):
            if not session.working:
                continue
            try:
                session.step()
                if not session.suspended:
                    self._catch_up(identity, session)
            except Exception as error:
                self._send(identity, Refusal(self._failed(identity, error)))
            if identity in self._sessions:
                # To the end of the queue: the others come first next time.
                self._sessions[identity] = self._sessions.pop(identity)
            return

    def _failed(self, identity: bytes, error: Exception) -> str:
        """Log a failure and return what to tell the client, which loses its state if nobody foresaw this."""
        if isinstance(error, SonoranError):
            log.warning("client %s is refused: %s", identity.hex(), error)
            return str(error)
        log.error("serving client %s failed", identity.hex(), exc_info=error)
        self._drop(identity, "serving it failed")
        return f"the draft worker failed: {type(error).__name__}: {error}"

    def _evict(self, now: float, missed: float) -> None:
        """Drop clients that were silent too long; ``missed`` is the time since this was last looked at.

        If that is long, this process was stopped or busy, and clients may have spoken meanwhile.
        """
        for identity, session in list(self._sessions.items()):
            if missed > 2 * self._heartbeat_s:
                session.heard += missed
            elif now - session.heard > EVICTED_AFTER * self._heartbeat_s:
                self._drop(identity, f"silent for {now - session.heard:.1f} s")

    def _drop(self, identity: bytes, why: str) -> None:
        session = self._sessions.pop(identity, None)
        if session is None:
            return
        log.info("client %s left: %s", identity.hex(), why)
        try:
            session.close()
        except Exception:
            log.exception("freeing what client %s had failed", identity.hex())

    def _send(self, identity: bytes, message: ToClient) -> None:
        try:
            self._socket.send_multipart([identity, encode(message)], zmq.NOBLOCK)
        except zmq.Again:
            log.warning("client %s does not read; a message to it is dropped", identity.hex())
        except zmq.ZMQError as error:
            self._drop(identity, f"it cannot be reached: {error}")
