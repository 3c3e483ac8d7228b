"""The client's end of one connection: typed messages out and in, never waiting longer than told.

Not thread-safe by itself; its owner holds a lock around every call.
"""

from __future__ import annotations

from dataclasses import dataclass

import zmq

from sonoran.draftworker.codec import decode_to_client, encode
from sonoran.draftworker.keys import Keys
from sonoran.draftworker.messages import Bye, ToClient, ToWorker
from sonoran.draftworker.transport import client_socket

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
        return decode_to_client(frames[0] if len(frames) == 1 else b"")

    def close(self, *, goodbye: bool = False) -> None:
        """Close the socket; with a goodbye, the worker hears that nothing is needed any more."""
        if goodbye and self.send(Bye()):
            self._socket.close(linger=_GOODBYE_MS)
        else:
            self._socket.close()
