"""ZeroMQ sockets of worker (ROUTER) and client (DEALER), over ``ipc`` or ``tcp``, bounded and authenticated.

A reconnecting client keeps its identity, and nothing is queued for a peer that is not there.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
from pathlib import Path

import zmq
from zmq.utils import z85

from sonoran.errors import ConfigError, WorkerError
from sonoran.ssd.messages import MAX_MESSAGE_BYTES
from sonoran.worker.keys import Keys

HIGH_WATER_MARK = 256
"""Messages that may wait in one direction."""

DEFAULT_HEARTBEAT_S = 1.0
"""How often client and worker hear from each other; also how long a client waits for a reply."""

ZAP_ADDRESS = "inproc://zeromq.zap.01"
"""Where libzmq asks whether a client's key is allowed (ZeroMQ RFC 27)."""

_TCP, _IPC = "tcp://", "ipc://"
_IDENTITY_BYTES = 16
_HANDSHAKE_MS = 2000
_RECONNECT_MS = 50
_RECONNECT_MAX_MS = 1000
_MAX_IPC_PATH = 100  # bytes; the kernel takes 107


def check_address(address: str, keys: Keys | None) -> None:
    """Raise ConfigError for an address that cannot be used, or may not be used without keys."""
    if address.startswith(_IPC):
        path = address[len(_IPC) :]
        if not path or len(os.fsencode(path)) > _MAX_IPC_PATH:
            raise ConfigError(f"the path of {address!r} must have 1 to {_MAX_IPC_PATH} bytes")
        return
    host, separator, port = address[len(_TCP) :].rpartition(":")
    if not address.startswith(_TCP) or not separator or not host:
        raise ConfigError(f"address {address!r} cannot be read; write tcp://HOST:PORT or ipc://PATH")
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ConfigError(f"address {address!r}: the port must be from 1 to 65535, got {port!r}")
    if keys is None and not is_loopback(host):
        raise ConfigError(
            f"{address} can be reached from other machines, so it needs keys: make them with "
            "'sonoran draft-worker keygen --out DIR' and name the file (--key-file), or use tcp://127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that host; names other than ``localhost`` count as outside."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def worker_socket(
    context: zmq.Context[zmq.Socket[bytes]], address: str, keys: Keys | None
) -> zmq.Socket[bytes]:
    """Return a bound ROUTER. Raises ConfigError for the address, WorkerError when it cannot be bound."""
    check_address(address, keys)
    socket = _socket(context, zmq.ROUTER, address)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
        socket.setsockopt_string(zmq.ZAP_DOMAIN, "sonoran")
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        raise WorkerError(f"cannot listen at {address}: {error}") from error
    return socket


def remove_socket(address: str) -> None:
    """Remove the file of an ``ipc`` address that was listened at; libzmq leaves it."""
    if address.startswith(_IPC):
        Path(address[len(_IPC) :]).unlink(missing_ok=True)


def client_socket(
    context: zmq.Context[zmq.Socket[bytes]], address: str, keys: Keys | None
) -> zmq.Socket[bytes]:
    """Return a connecting DEALER with an identity of its own; it takes messages once it is connected."""
    check_address(address, keys)
    socket = _socket(context, zmq.DEALER, address)
    socket.setsockopt(zmq.IDENTITY, b"s" + os.urandom(_IDENTITY_BYTES))
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.peer.encode())
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        socket.close()
        raise WorkerError(f"cannot connect to {address}: {error}") from error
    return socket


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    if address.startswith(_TCP):
        socket.setsockopt(zmq.IPV6, 1)
    return socket


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
