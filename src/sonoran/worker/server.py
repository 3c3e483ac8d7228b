"""The worker's loop: replies go first, then each client's drafting moves on by one forward pass, in turns.

Between two passes the loop looks for messages, so that a question waits for one pass at most. Idle, it sleeps. Of
several clients that ask, the one that had the least time goes first: who asks for much waits for itself.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import zmq

from sonoran.errors import SonoranError, WorkerError
from sonoran.ssd.messages import (
    HELLO_FIRST,
    MAX_MESSAGE_BYTES,
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

PLACES_PER_PEER = 32
"""Of these, how many one process (``ipc``) or one host (``tcp``) may take."""

IDLE_AFTER_S = 2.0
"""Seconds without drafting after which a client gives its place to a newcomer, when there is no other."""

_WARN_EVERY_S = 1.0
_ROOM_BYTES = 2**21
_BYTES_PER_TOKEN = 16

_TURN_S = 0.005
"""Seconds for sorting what has arrived, and for one client's news, before others have their turn."""

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
        longest = longest_message(service.context_length)
        # A little more is still read, so that its sender hears why it is not taken.
        endpoint = Endpoint(context, address, keys, longest=2 * longest)
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


def longest_message(context_length: int) -> int:
    """Return the bytes of the longest message that a client has a use for: a prompt as long as the draft can see."""
    return min(MAX_MESSAGE_BYTES // 2, _ROOM_BYTES + _BYTES_PER_TOKEN * context_length)


class Server:
    """All clients of one worker, in one thread."""

    def __init__(
        self, service: Service, socket: zmq.Socket[bytes], heartbeat_s: float, gate: Gate | None = None
    ) -> None:
        self._service, self._socket, self._gate = service, socket, gate
        self._heartbeat_s = heartbeat_s
        self._sessions: dict[bytes, Session] = {}
        self._longest = longest_message(service.context_length)
        self._served = 0.0  # seconds that every busy client has had at least
        self._has_replied = False
        self._warned_at = -math.inf

    def run(self, stop_fds: Sequence[int] = ()) -> None:
        """Serve until one of ``stop_fds`` is readable, then free all that the clients had."""
        poller = zmq.Poller()
        for readable in (self._socket, *stop_fds, *([self._gate.socket] if self._gate else [])):
            poller.register(readable, zmq.POLLIN)
        turn = time.monotonic()
        try:
            while True:
                busy = any(session.busy for session in self._sessions.values())
                ready = dict(poller.poll(0 if busy else int(1e3 * self._heartbeat_s)))
                if any(fd in ready for fd in stop_fds):
                    return
                if self._gate is not None and self._gate.socket in ready:
                    self._gate.answer()
                if self._socket in ready:
                    self._receive()
                now = time.monotonic()
                self._evict(now, now - turn)
                turn = now
                self._read()
                if self._has_replied:
                    self._has_replied = False
                    time.sleep(_YIELD_S)
                self._advance()
        finally:
            for identity in list(self._sessions):
                self._drop(identity, "the worker stops")

    def _receive(self) -> None:
        """Sort what has arrived; what clients that are known said waits for their turn."""
        end = time.monotonic() + _TURN_S
        while time.monotonic() < end:
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._handle(identity.bytes, frames)

    def _handle(self, identity: bytes, frames: list[zmq.Frame]) -> None:
        session = self._sessions.get(identity)
        if session is not None:
            session.heard = time.monotonic()
        try:
            if len(frames) != 1:
                raise WorkerError(f"a message has one part, not {len(frames)}")
            size = len(frames[0])
            if size > self._longest:
                raise WorkerError(
                    f"a message of {size} bytes exceeds the {self._longest} that are taken here"
                )
            message = decode_to_worker(frames[0].bytes)
        except WorkerError as error:
            self._refuse(identity, session, error)
            return
        if session is None:
            self._answer(identity, None, message, _peer(frames[0]))
            return
        if not session.busy:
            session.spent = max(session.spent, self._served)
        if not session.put(message, size):
            self._refuse(
                identity, session, WorkerError("too many messages wait already; this one is dropped")
            )

    def _refuse(self, identity: bytes, session: Session | None, error: WorkerError) -> None:
        if session is not None and not session.told_of_nonsense:
            session.told_of_nonsense = True
            self._warn("client %s: %s", identity.hex(), error)
        self._send(identity, Refusal(str(error)))

    def _read(self) -> None:
        """Let the client that had the least time be heard: up to its next question, and not for long."""
        asking = [(s.spent, identity) for identity, s in self._sessions.items() if s.inbox]
        if not asking:
            return
        _, identity = min(asking)
        session = self._sessions[identity]
        end = time.monotonic() + _TURN_S
        with self._timed(session):
            while session.inbox and time.monotonic() < end:
                message = session.take()
                self._answer(identity, self._sessions.get(identity), message, session.peer)
                session = self._sessions.get(identity, session)
                if isinstance(message, Speculate | StatsRequest) and identity in self._sessions:
                    break

    @contextmanager
    def _timed(self, session: Session) -> Iterator[None]:
        """Count the time that a client takes."""
        self._served = min(s.spent for s in self._sessions.values() if s.busy)
        begin = time.monotonic()
        try:
            yield
        finally:
            session.spent += time.monotonic() - begin

    def _answer(self, identity: bytes, session: Session | None, message: ToWorker, peer: str = "") -> None:
        try:
            reply = self._dispatch(identity, session, message, peer)
            if reply is not None:
                self._send(identity, reply)
        except Exception as error:
            reason = self._failed(identity, error)
            if isinstance(message, Speculate):
                self._send(identity, all_unknown(message))
            self._send(identity, Refusal(reason))

    def _dispatch(
        self, identity: bytes, session: Session | None, message: ToWorker, peer: str
    ) -> ToClient | None:
        if isinstance(message, Hello):
            return self._welcome(identity, message, peer)
        if isinstance(message, Bye):
            self._drop(identity, "it said goodbye")
            return None
        if session is None:
            return Refusal(HELLO_FIRST)
        if isinstance(message, Speculate | Prefill):
            session.used = time.monotonic()
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

    def _welcome(self, identity: bytes, hello: Hello, peer: str) -> ToClient:
        before = self._drop(identity, "it begins anew")
        service, now = self._service, time.monotonic()
        fingerprint = check_fit(hello, service)
        self._make_room(peer, now)
        session = Session(service.open(hello), now, peer, self._served)
        if before is not None:  # what it said after this hello
            session.inbox, session.inbox_bytes = before.inbox, before.inbox_bytes
        self._sessions[identity] = session
        log.info("client %s came; %d in all", identity.hex(), len(self._sessions))
        return Welcome(
            PROTOCOL_VERSION,
            fingerprint,
            service.model,
            service.context_length,
            self._heartbeat_s,
            service.num_tokens,
        )

    def _make_room(self, peer: str, now: float) -> None:
        """Find a place for a newcomer. Raises WorkerError when its peer has enough, or when all are at work."""
        if sum(session.peer == peer for session in self._sessions.values()) >= PLACES_PER_PEER:
            raise WorkerError(f"the draft worker takes {PLACES_PER_PEER} clients from one place ({peer})")
        if len(self._sessions) < MAX_CLIENTS:
            return
        idle = [
            (session.used, identity)
            for identity, session in self._sessions.items()
            if not session.busy and now - session.used > IDLE_AFTER_S
        ]
        if not idle:
            raise WorkerError(f"the draft worker has {MAX_CLIENTS} clients at work, which is all it takes")
        self._drop(min(idle)[1], "it was idle longest, and another needs the place")

    def _advance(self) -> None:
        """Move the work of the next client on by a forward pass. Questions come first: its own, and those of clients
        that had less time.
        """
        asking = min((s.spent for s in self._sessions.values() if s.inbox), default=math.inf)
        for identity, session in list(self._sessions.items()):
            if not session.working or session.inbox or session.spent > asking:
                continue
            with self._timed(session):
                self._step(identity, session)
            if self._sessions.get(identity) is session:
                # To the end of the queue: the others come first next time.
                self._sessions[identity] = self._sessions.pop(identity)
            return

    def _step(self, identity: bytes, session: Session) -> None:
        try:
            session.step()
            if not session.suspended:
                self._catch_up(identity, session)
        except Exception as error:
            self._send(identity, Refusal(self._failed(identity, error)))

    def _failed(self, identity: bytes, error: Exception) -> str:
        """Log a failure and return what to tell the client, which loses its state if nobody foresaw this."""
        if isinstance(error, SonoranError):
            self._warn("client %s is refused: %s", identity.hex(), error)
            return str(error)
        log.error("serving client %s failed", identity.hex(), exc_info=error)
        self._drop(identity, "serving it failed")
        return f"the draft worker failed: {type(error).__name__}: {error}"

    def _warn(self, text: str, *values: object) -> None:
        """Say what a client did, but not as often as it does it."""
        now = time.monotonic()
        quiet = now - self._warned_at < _WARN_EVERY_S
        if not quiet:
            self._warned_at = now
        log.log(logging.DEBUG if quiet else logging.WARNING, text, *values)

    def _evict(self, now: float, missed: float) -> None:
        """Drop clients that were silent too long; ``missed`` is the time since this was last looked at.

        If that is long, this process was stopped or busy, and clients may have spoken meanwhile.
        """
        for identity, session in list(self._sessions.items()):
            if missed > 2 * self._heartbeat_s:
                session.heard += missed
            elif now - session.heard > EVICTED_AFTER * self._heartbeat_s:
                self._drop(identity, f"silent for {now - session.heard:.1f} s")

    def _drop(self, identity: bytes, why: str) -> Session | None:
        session = self._sessions.pop(identity, None)
        if session is None:
            return None
        log.info("client %s left: %s", identity.hex(), why)
        try:
            session.close()
        except Exception:
            log.exception("freeing what client %s had failed", identity.hex())
        return session

    def _send(self, identity: bytes, message: ToClient) -> None:
        try:
            self._socket.send_multipart([identity, encode(message)], zmq.NOBLOCK)
        except zmq.Again:
            self._warn("client %s does not read; a message to it is dropped", identity.hex())
        except zmq.ZMQError as error:
            self._drop(identity, f"it cannot be reached: {error}")


def _peer(frame: zmq.Frame) -> str:
    """Return who sent a message: user, group and process of a local socket, the host of another."""
    try:
        return str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return "unknown"
