"""Which clients may connect: libzmq asks, and only the key of the key file is let in (ZeroMQ RFC 27)."""

from __future__ import annotations

import hmac
import logging

import zmq
from zmq.utils import z85

from sonoran.draftworker.keys import Keys
from sonoran.draftworker.transport import ZAP_ADDRESS

log = logging.getLogger(__name__)


class Gate:
    """Answers the questions of one context; ``answer`` is called when ``socket`` is readable."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys) -> None:
        self._allowed = z85.decode(keys.peer.encode())
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(ZAP_ADDRESS)

    def answer(self) -> None:
        """Answer one question: 200 for the key that is allowed, 400 for any other."""
        frames = self.socket.recv_multipart()
        version, request = frames[0], frames[1]
        mechanism, credentials = frames[5], frames[6:]
        allowed = (
            mechanism == b"CURVE"
            and len(credentials) == 1
            and hmac.compare_digest(credentials[0], self._allowed)
        )
        if not allowed:
            log.warning("a client at %s has the wrong key", frames[3].decode("ascii", "replace"))
        status = (b"200", b"OK") if allowed else (b"400", b"wrong key")
        self.socket.send_multipart([version, request, *status, b"", b""])

    def close(self) -> None:
        """Let nobody in any more."""
        self.socket.close()
