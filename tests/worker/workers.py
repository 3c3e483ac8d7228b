"""Clients, servers and proxies for tests, all with short heartbeats; nothing here needs a model."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from sonoran.config import SpeculationSettings
from sonoran.sampling.params import SamplingParams
from sonoran.ssd.messages import (
    PROTOCOL_VERSION,
    Hello,
    Item,
    Prefill,
    Welcome,
    decode_to_client,
    decode_to_worker,
    encode,
)
from sonoran.worker.client import WorkerClient
from sonoran.worker.connection import Remote
from sonoran.worker.keys import Keys
from sonoran.worker.process import Local
from sonoran.worker.server import serve
from sonoran.worker.session import Service
from sonoran.worker.transport import Endpoint, client_socket
from tests.worker.fake_worker import CONTEXT, FINGERPRINT

BEAT = 0.2
SCRIPT = Path(__file__).with_name("fake_worker.py")
COMMAND = (sys.executable, str(SCRIPT))
PATIENCE = 10.0


def hello(**changes: Any) -> Hello:
    values: dict[str, Any] = {
        "version": PROTOCOL_VERSION,
        "fingerprint": FINGERPRINT,
        "vocab_size": 64,
        "eos_ids": [0],
        "settings": SpeculationSettings(),
    }
    return Hello(**{**values, **changes})


def prefill(sequence: int = 1, generation: int = 1, tokens: list[int] | None = None) -> Prefill:
    tokens = tokens or [1, 2, 3]
    return Prefill(sequence, generation, tokens, len(tokens), 0, SamplingParams())


def item(base: int, token: int = 7, sequence: int = 1, generation: int = 1, wanted: int = 4) -> Item:
    return Item(sequence, generation, base, [token], wanted, -1)


def local(heartbeat_s: float = BEAT, **options: Any) -> Local:
    return Local(options, heartbeat_s=heartbeat_s, command=COMMAND)


@contextmanager
def connected(place: Local | Remote, **changes: Any) -> Iterator[WorkerClient]:
    client = WorkerClient(hello(**changes), place)
    try:
        client.start()
        yield client
    finally:
        client.close()


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.005)


def runs(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("sonoran-draft-*"))


@contextmanager
def in_thread(run: Callable[[int], None]) -> Iterator[None]:
    """Run ``run(descriptor)`` beside the test; the descriptor becomes readable when it shall end."""
    readable, writable = os.pipe()
    failures: list[BaseException] = []

    def body() -> None:
        try:
            run(readable)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.write(writable, b"!")
        thread.join(PATIENCE)
        os.close(readable)
        os.close(writable)
        assert not thread.is_alive()
        if failures:
            raise failures[0]


@contextmanager
def serving(
    service: Service, address: str, heartbeat_s: float = BEAT, keys: Keys | None = None
) -> Iterator[None]:
    """A real server in a thread of this process."""
    ready = threading.Event()

    def run(stop: int) -> None:
        serve(service, address, keys=keys, heartbeat_s=heartbeat_s, stop_fds=(stop,), on_ready=ready.set)

    with in_thread(run):
        assert ready.wait(PATIENCE)
        yield


@contextmanager
def scripted(
    address: str, reply: Callable[[Any], list[bytes]], welcome: Welcome | None = None
) -> Iterator[list[Any]]:
    """A worker that welcomes everybody and answers everything else with what ``reply`` returns."""
    welcome = welcome or Welcome(PROTOCOL_VERSION, FINGERPRINT, "scripted", CONTEXT, BEAT)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    endpoint = Endpoint(context, address, None)
    sock = endpoint.socket
    heard: list[Any] = []

    def run(stop: int) -> None:
        poller = zmq.Poller()
        poller.register(sock, zmq.POLLIN)
        poller.register(stop, zmq.POLLIN)
        while stop not in (ready := dict(poller.poll())):
            if sock not in ready:
                continue
            identity, data = sock.recv_multipart()
            message = decode_to_worker(data)
            heard.append(message)
            if isinstance(message, Hello):
                sock.send_multipart([identity, encode(welcome)])
                continue
            for answer in reply(message):
                sock.send_multipart([identity, answer])

    try:
        with in_thread(run):
            yield heard
    finally:
        endpoint.close()
        context.term()


class RawClient:
    """A socket that says anything."""

    def __init__(self, address: str, keys: Keys | None = None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = client_socket(self._context, address, keys)

    def say(self, *messages: Any) -> None:
        for message in messages:
            data = message if isinstance(message, bytes) else encode(message)
            assert self.socket.poll(int(1e3 * PATIENCE), zmq.POLLOUT), "no connection"
            self.socket.send(data)

    def hear(self, timeout_s: float = PATIENCE) -> Any:
        assert self.socket.poll(int(1e3 * timeout_s)), "no answer"
        return decode_to_client(self.socket.recv())

    def close(self) -> None:
        self.socket.close()
        self._context.term()


@contextmanager
def raw(address: str, *first: Any) -> Iterator[RawClient]:
    client = RawClient(address)
    try:
        client.say(*first)
        yield client
    finally:
        client.close()


class Proxy:
    """Forwards TCP connections to a port of this machine, until it is told to hold everything back."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.open = threading.Event()
        self.open.set()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self.open.wait()
                sink.sendall(data)
        except OSError:
            pass

    def reset(self) -> None:
        """Cut all connections off for good."""
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    def close(self) -> None:
        self.open.set()
        self._listener.close()
        self.reset()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
