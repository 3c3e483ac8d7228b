"""ZeroMQ sockets of worker (ROUTER) and client (DEALER), over ``ipc`` or ``tcp``, bounded and authenticated.

A reconnecting client keeps its identity, and nothing is queued for a peer that is not there.
"""

from __future__ import annotations

import errno
import fcntl
import hmac
import ipaddress
import logging
import os
import socket as sockets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import zmq
from zmq.utils import z85

from sonoran.errors import ConfigError, WorkerError
from sonoran.ssd.messages import MAX_MESSAGE_BYTES
from sonoran.worker.keys import Keys

HIGH_WATER_MARK = 256
"""Messages that may wait in one direction."""

WORKER_HIGH_WATER_MARK = 64
"""The same for what has reached a worker, whose memory all its clients share."""

DEFAULT_HEARTBEAT_S = 1.0
"""How often client and worker hear from each other; also how long a client waits for a reply."""

MIN_HEARTBEAT_S, MAX_HEARTBEAT_S = 0.01, 60.0

ZAP_ADDRESS = "inproc://zeromq.zap.01"
"""Where libzmq asks whether a client's key is allowed (ZeroMQ RFC 27)."""

_TCP, _IPC = "tcp://", "ipc://"
_IDENTITY_BYTES = 16
_HANDSHAKE_MS = 2000
_RECONNECT_MS = 50
_RECONNECT_MAX_MS = 1000
_MAX_IPC_PATH = 100  # bytes; the kernel takes 107
_BACKLOG = 100
_LOCK_PATIENCE_S = 2.0


def check_address(address: str, keys: Keys | None) -> None:
    """Raise ConfigError for an address that cannot be used, or may not be used without keys."""
    if address.startswith(_IPC):
        path = address[len(_IPC) :]
        if not path or len(os.fsencode(path)) > _MAX_IPC_PATH:
            raise ConfigError(f"the path of {address!r} must have 1 to {_MAX_IPC_PATH} bytes")
        if path == "*" or "\0" in path:
            raise ConfigError(f"address {address!r} names no path; write ipc://PATH")
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


class Endpoint:
    """A bound ROUTER, and the file of its ``ipc`` address if it made one."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        keys: Keys | None,
        *,
        longest: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """Listen; who sends more than ``longest`` bytes at once is cut off.

        Raises ConfigError for the address, WorkerError when it is in use or cannot be bound.
        """
        check_address(address, keys)
        self._made: _Made | None = None
        self.socket = _socket(context, zmq.ROUTER, address)
        self.socket.setsockopt(zmq.RCVHWM, WORKER_HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.MAXMSGSIZE, longest)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if keys is not None:
            self.socket.setsockopt(zmq.CURVE_SERVER, 1)
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
            self.socket.setsockopt_string(zmq.ZAP_DOMAIN, "sonoran")
        try:
            self._bind(address)
        except (OSError, zmq.ZMQError, WorkerError) as error:
            self.close()
            reason = error.strerror if isinstance(error, OSError) else None
            raise WorkerError(f"cannot listen at {address}: {reason or error}") from error

    def _bind(self, address: str) -> None:
        if not address.startswith(_IPC):
            self.socket.bind(address)
            return
        # libzmq removes whatever lies at a path before it binds, so that is not left to it.
        listener, self._made = _listen(address[len(_IPC) :])
        with listener:
            self.socket.setsockopt(zmq.USE_FD, listener.fileno())
            self.socket.bind(address)
            listener.detach()  # it is libzmq's from now on

    def remove_file(self) -> None:
        """Remove the file of the address, if it is still the one that was made here. Twice is harmless."""
        made, self._made = self._made, None
        if made is not None:
            made.remove()

    def close(self) -> None:
        """Listen no more, and leave no file behind."""
        self.socket.close()
        self.remove_file()


class _Made:
    """The file of a socket that this process bound: which one it is, so that no other is ever removed."""

    def __init__(self, path: Path) -> None:
        self._path, self._owner = path, os.getpid()
        self._inode = _inode(path)

    def remove(self) -> None:
        """Remove it, unless another has taken its place or this is a forked child."""
        if os.getpid() != self._owner:
            return
        with suppress(OSError), _folder_lock(self._path.parent):
            if _inode(self._path) == self._inode:
                self._path.unlink()


def _inode(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _listen(path: str) -> tuple[sockets.socket, _Made | None]:
    """Return a socket that listens at ``path`` (``@name``: in the abstract namespace), and the file it made.

    Raises OSError, WorkerError when something else is there that is in use or is no socket.
    """
    listener = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    try:
        made = None
        if path.startswith("@"):
            listener.bind("\0" + path[1:])
            listener.listen(_BACKLOG)
        else:
            file = Path(path).absolute()
            with _folder_lock(file.parent):
                _clear(file)
                listener.bind(path)
                made = _Made(file)
                listener.listen(_BACKLOG)
        return listener, made
    except BaseException:
        listener.close()
        raise


def _clear(path: Path) -> None:
    """Remove the socket that a worker left when it was killed, and nothing else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise WorkerError("a file is there that is no socket; it is left alone, choose another path")
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # somebody listens, and has much to do
    raise WorkerError("address in use: somebody answers there")


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Keep other workers from looking at a path of that folder, and taking it, at the same time."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        end = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise OSError(errno.EAGAIN, f"another process holds the folder {folder}") from None
                time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


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
