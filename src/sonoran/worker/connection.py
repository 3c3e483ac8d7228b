"""One client's connection as a state machine: connecting, up, silent, down.

It never blocks and knows no threads; its owner calls it under a lock. *Silent* means that the worker missed a
deadline but may still have everything; *down* means that the session is over and must be begun anew. ``epoch``
grows with every session: what was told to the worker before counts for nothing then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import zmq

from sonoran.errors import CompatibilityError, SonoranError, WorkerError
from sonoran.ssd.messages import (
    HELLO_FIRST,
    Bye,
    Heartbeat,
    Hello,
    Refusal,
    Speculations,
    Stats,
    ToClient,
    ToWorker,
    Welcome,
    decode_to_client,
    encode,
)
from sonoran.worker.keys import Keys
from sonoran.worker.transport import DEFAULT_HEARTBEAT_S, MAX_HEARTBEAT_S, MIN_HEARTBEAT_S, client_socket

_GOODBYE_MS = 100
_SLICE_MS = 20


@dataclass(frozen=True, slots=True)
class Remote:
    """A worker that somebody else runs."""

    address: str
    keys: Keys | None = None
    patience_s: float = 10.0  # until a connection attempt is given up


class Link:
    """A socket that connects in the background. Raises ConfigError, WorkerError for an impossible address."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, keys: Keys | None = None
    ) -> None:
        self._socket = client_socket(context, address, keys)
        self._socket.setsockopt(zmq.RCVTIMEO, _SLICE_MS)

    def send(self, message: ToWorker) -> bool:
        """Hand a message over; False when there is no connection, or too much waits already.

        Raises WorkerError for a message that is too long.
        """
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            raise WorkerError(f"the connection to the draft worker failed: {error}") from error
        return True

    def receive(self, *, wait: bool = False) -> ToClient | None:
        """Return the next message, or None when there is none, with ``wait`` for 20 ms.

        Raises WorkerError for nonsense.
        """
        try:
            # Waiting inside libzmq saves a system call over polling first.
            frames = self._socket.recv_multipart(0 if wait else zmq.NOBLOCK)
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            raise WorkerError(f"the connection to the draft worker failed: {error}") from error
        return decode_to_client(frames[0] if len(frames) == 1 else b"")

    def close(self, *, goodbye: bool = False) -> None:
        """Close the socket; with a goodbye, the worker hears that nothing is needed any more."""
        said = False
        if goodbye:
            with suppress(WorkerError):
                said = self.send(Bye())
        self._socket.close(linger=_GOODBYE_MS if said else 0)


log = logging.getLogger(__name__)

State = Literal["connecting", "up", "silent", "down"]

SILENT_AFTER = 3  # heartbeats without an echo
LOST_AFTER = 6
LONGEST_BACK_OFF_S = 30.0
_FIRST_BACK_OFF_S = 0.25
_STEADY_S = 30.0  # of being up, after which earlier failures are forgotten
_NONSENSE_ALLOWED = 3  # unreadable messages in a row
_FORGIVEN_AFTER = 8  # replies in time, after which missed deadlines are forgotten


@dataclass(slots=True)
class Counters:
    """What went wrong since the client was made."""

    sessions: int = 0
    lost: int = 0
    silences: int = 0
    late_replies: int = 0
    garbage: int = 0
    refusals: int = 0


class Connection:
    """State of the connection that ``connect`` opens links for; times are seconds on the caller's clock."""

    def __init__(
        self,
        hello: Hello | None,
        connect: Callable[[], Link],
        patience_s: float,
        fingerprint_of: Callable[[int], str] | None = None,
    ) -> None:
        self.state: State = "down"
        self.epoch = 0
        self.welcome: Welcome | None = None
        self.counters = Counters()
        self.error: SonoranError | None = None  # why there is no session
        self.retry_at = 0.0
        self.awaited: int | None = None  # the round whose reply is waited for
        self.worker_stats: dict[str, Any] | None = None
        self.hello, self._connect, self._patience_s = hello, connect, patience_s
        self.fingerprint_of = fingerprint_of  # of the target's first tokens
        self._link: Link | None = None
        self._greeted = False
        self._since = 0.0  # of the present state
        self._failures = 0
        self._misses = self._in_time = 0
        self._trusted_at = 0.0
        self._beat = 0
        self._beat_at = 0.0
        self._beat_open = False  # sent, and no echo yet
        self._nonsense = 0
        self._nonsense_told = False

    @property
    def heartbeat_s(self) -> float:
        """The worker's heartbeat."""
        return self.welcome.heartbeat_s if self.welcome else DEFAULT_HEARTBEAT_S

    def begin(self, now: float) -> None:
        """Connect and say hello. Raises ConfigError, WorkerError for an address that can never work."""
        self.close_link()
        self._link = self._connect()
        self._enter("connecting", now)
        self._greeted = False

    def tick(self, now: float) -> None:
        """Send what is due, read what has come, and judge how the worker does."""
        if self._link is None:
            return
        if self.state == "connecting" and not self._greeted:
            if self.hello is None:
                raise WorkerError("there is nothing to say hello with yet")
            self._greeted = self._link.send(self.hello)
        while self.receive(now) is not None:
            pass
        if self.state == "connecting":
            if now - self._since > self._patience_s:
                self.lose(WorkerError(f"the draft worker gave no answer within {self._patience_s:g} s"), now)
        elif self.state != "down":
            self._keep_in_touch(now)

    def send(self, message: ToWorker, now: float) -> bool:
        """Send; False if the connection turns out to be broken, or was not up."""
        if self._link is None or self.state != "up":
            return False
        if self._link.send(message):
            return True
        self.lose(WorkerError("the connection to the draft worker broke"), now)
        return False

    def receive(self, now: float, *, wait: bool = False) -> ToClient | None:
        """Return the next message, after taking it into account; None when there is none, or nonsense.

        With ``wait``, up to 20 ms go by until one comes.
        """
        if self._link is None:
            return None
        try:
            message = self._link.receive(wait=wait)
        except WorkerError as error:
            self._take_nonsense(error, now)
            return None
        if message is not None:
            self._nonsense = 0
            self._take(message, now)
        return message

    def missed(self, now: float, waited_s: float) -> None:
        """Note that a reply did not come in time; each miss in a row is trusted later again."""
        self._misses, self._in_time = self._misses + 1, 0
        penalty = self.heartbeat_s * (2.0 ** (self._misses - 1) - 1.0)
        self._trusted_at = now + min(penalty, LONGEST_BACK_OFF_S)
        self.fall_silent(f"no reply within {waited_s:.2f} s", now)

    def kept(self) -> None:
        """Note that a reply came in time."""
        self._in_time += 1
        if self._in_time >= _FORGIVEN_AFTER:
            self._misses = 0

    def fall_silent(self, why: str, now: float) -> None:
        """Expect no reply until the echo of a heartbeat that is yet to be sent."""
        if self.state != "up":
            return
        self.counters.silences += 1
        level = logging.WARNING if self._misses <= 1 else logging.DEBUG
        log.log(level, "the draft worker is silent: %s; decoding goes on without it", why)
        self._enter("silent", now)
        self._beat += 1
        self._beat_at, self._beat_open = min(self._beat_at, now - 0.5 * self.heartbeat_s), False

    def lose(self, error: SonoranError, now: float) -> None:
        """End the session; the next one may begin after a pause that grows with every failure in a row."""
        if self.state == "down":
            log.warning("still no speculation: %s", error)
        elif self.state != "connecting":
            self.counters.lost += 1
            if self.state == "up" and now - self._since > _STEADY_S:
                self._failures = 0
            log.warning("decoding goes on without speculation: %s", error)
        self.close_link()
        self.fail(error, now)

    def fail(self, error: SonoranError, now: float) -> None:
        """Note an attempt that failed."""
        self.error = error
        self._enter("down", now)
        self.retry_at = now + min(_FIRST_BACK_OFF_S * 2.0 ** min(self._failures, 16), LONGEST_BACK_OFF_S)
        self._failures += 1

    def close_link(self, *, goodbye: bool = False) -> None:
        """Close the socket, if there is one."""
        if self._link is not None:
            self._link.close(goodbye=goodbye and self.state == "up")
            self._link = None

    def _enter(self, state: State, now: float) -> None:
        self.state, self._since = state, now

    def _take(self, message: ToClient, now: float) -> None:
        if isinstance(message, Welcome) and self.state == "connecting":
            self._come_up(message, now)
        elif isinstance(message, Refusal):
            self._take_refusal(message.reason, now)
        elif isinstance(message, Heartbeat):
            if message.number == self._beat:
                self._beat_open = False
                if self.state == "silent" and now >= self._trusted_at:
                    self._enter("up", now)
                    log.warning("the draft worker answers again")
        elif isinstance(message, Stats):
            self.worker_stats = message.values
        elif isinstance(message, Speculations) and message.round != self.awaited:
            self.counters.late_replies += 1

    def _come_up(self, welcome: Welcome, now: float) -> None:
        hello = self.hello
        if hello is None:
            return
        expected, fewer = hello.fingerprint, 0 < welcome.num_tokens < hello.num_tokens
        if fewer and welcome.fingerprint != expected and self.fingerprint_of is not None:
            expected = self.fingerprint_of(welcome.num_tokens)
        if (welcome.version, welcome.fingerprint) != (hello.version, expected):
            self.lose(CompatibilityError("the draft worker has another version or vocabulary"), now)
        elif not MIN_HEARTBEAT_S <= welcome.heartbeat_s <= MAX_HEARTBEAT_S or welcome.context_length < 1:
            self.lose(WorkerError(f"the draft worker introduces itself with nonsense: {welcome}"), now)
        elif self.welcome is not None and welcome.context_length < self.welcome.context_length:
            sizes = f"{welcome.context_length} tokens instead of {self.welcome.context_length}"
            self.lose(CompatibilityError(f"the new draft worker sees only {sizes}"), now)
        else:
            self.welcome, self.error = welcome, None
            self.epoch += 1
            self.counters.sessions += 1
            self._beat_open, self._beat_at = False, now
            self._enter("up", now)
            if self.epoch > 1:
                log.warning("the draft worker is back (%s)", welcome.model)

    def _take_refusal(self, reason: str, now: float) -> None:
        if self.state == "connecting":
            if reason != HELLO_FIRST:
                self.lose(CompatibilityError(f"the draft worker declined: {reason}"), now)
        elif reason == HELLO_FIRST:
            self.lose(WorkerError("the draft worker has forgotten this engine"), now)
        else:
            self.counters.refusals += 1
            level = logging.WARNING if self.counters.refusals == 1 else logging.DEBUG
            log.log(level, "the draft worker refuses: %s", reason)

    def _take_nonsense(self, error: WorkerError, now: float) -> None:
        self.counters.garbage += 1
        self._nonsense += 1
        if not self._nonsense_told:
            self._nonsense_told = True
            log.warning("the draft worker talks nonsense: %s", error)
        if self._nonsense >= _NONSENSE_ALLOWED:
            self._nonsense = 0
            self.lose(WorkerError("the draft worker talks nonsense"), now)

    def _keep_in_touch(self, now: float) -> None:
        quiet = now - self._beat_at
        if not self._beat_open:
            if quiet >= 0.5 * self.heartbeat_s and self._link is not None:
                self._beat += 1
                self._beat_at = now
                self._beat_open = self._link.send(Heartbeat(self._beat))
                if not self._beat_open:
                    self.lose(WorkerError("the connection to the draft worker broke"), now)
        elif quiet > LOST_AFTER * self.heartbeat_s:
            self.lose(WorkerError(f"the draft worker gave no sign of life for {quiet:.1f} s"), now)
        elif quiet > SILENT_AFTER * self.heartbeat_s:
            self.fall_silent(f"no heartbeat for {quiet:.1f} s", now)
