"""A man in the middle: passes on what client and worker say to each other, and one kind of fault at a time."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import zmq

from sonoran.errors import WorkerError
from sonoran.ssd.messages import Speculations, decode_to_client, encode
from sonoran.worker.transport import Endpoint, client_socket
from tests.worker.workers import in_thread

Messages = list[tuple[float, bytes]]
"""What becomes of a message: seconds until it is passed on, and what is passed on."""


class Mangler:
    """``fault`` is applied to every message with chance ``share``; None passes everything on."""

    def __init__(self, seed: int) -> None:
        self.fault: str | None = None
        self.share = 0.3
        self.mangled = 0
        self.chance = random.Random(seed)
        self._held: bytes | None = None
        self._old: deque[bytes] = deque(maxlen=50)
        self.faults: dict[str, Callable[[bytes], Messages]] = {
            "dropped": lambda data: [],
            "truncated": lambda data: [(0.0, data[: self.chance.randint(0, len(data))])],
            "flipped": lambda data: [(0.0, self._flip(data))],
            "garbage": lambda data: [(0.0, self.chance.randbytes(self.chance.randint(0, 200)))],
            "duplicated": lambda data: [(0.0, data)] * 3,
            "late": lambda data: [(self.chance.choice([0.02, 0.1, 0.5]), data)],
            "reordered": self._reorder,
            "replayed": lambda data: [(0.0, data), (0.0, self.chance.choice(list(self._old)))],
            "long": lambda data: [(0.0, data), (0.0, bytes(2**20))],
            "lying": lambda data: [(0.0, self._lie(data))],
        }

    def pass_on(self, data: bytes) -> Messages:
        """Return what becomes of a message."""
        self._old.append(data)
        if self.fault is None or self.chance.random() > self.share:
            return [(0.0, data)]
        self.mangled += 1
        return self.faults[self.fault](data)

    def _flip(self, data: bytes) -> bytes:
        damaged = bytearray(data)
        for _ in range(self.chance.randint(1, 4)):
            damaged[self.chance.randrange(len(damaged))] ^= 1 << self.chance.randrange(8)
        return bytes(damaged)

    def _reorder(self, data: bytes) -> Messages:
        before, self._held = self._held, data
        if before is None:
            return []
        self._held = None
        return [(0.0, data), (0.0, before)]

    def _lie(self, data: bytes) -> bytes:
        """Replace what a worker proposes, and what it says about it."""
        try:
            reply = decode_to_client(data)
        except WorkerError:
            return data
        if not isinstance(reply, Speculations):
            return data
        answers = []
        for answer in reply.answers:
            wild = [[], [self.chance.randrange(64) for _ in range(4)], [-1], [2**31], [3] * 500]
            changes = [
                {"tokens": self.chance.choice(wild)},
                {"known": not answer.known},
                {"sequence": answer.sequence + self.chance.choice([-1, 1])},
                {"generation": answer.generation - 1},
                {"origin": self.chance.choice(["primary", "draft", "ngram", "random", "none"])},
                {"fan_out": [10**9] * self.chance.choice([1, 2000])},
            ]
            answers.append(msgspec.structs.replace(answer, **self.chance.choice(changes)))  # type: ignore[arg-type]
        return encode(Speculations(reply.round, answers[: self.chance.randint(0, 9)], float("nan"), -1.0))


@contextmanager
def between(near: str, far: str, mangler: Mangler) -> Iterator[None]:
    """Listen at ``near`` for one client and speak to the worker at ``far`` for it."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    endpoint = Endpoint(context, near, None)
    worker = client_socket(context, far, None)

    def run(stop: int) -> None:
        poller = zmq.Poller()
        for readable in (endpoint.socket, worker, stop):
            poller.register(readable, zmq.POLLIN)
        client = b""
        due: list[tuple[float, bool, bytes]] = []  # when, whether to the worker, what
        while stop not in (ready := dict(poller.poll(5))):
            now = time.monotonic()
            if endpoint.socket in ready:
                client, *frames = endpoint.socket.recv_multipart()
                due += [(now + wait, True, data) for wait, data in mangler.pass_on(frames[-1])]
            if worker in ready:
                due += [(now + wait, False, data) for wait, data in mangler.pass_on(worker.recv())]
            for when, to_worker, data in due:
                if when > now:
                    continue
                try:
                    if to_worker:
                        worker.send(data, zmq.NOBLOCK)
                    else:
                        endpoint.socket.send_multipart([client, data], zmq.NOBLOCK)
                except zmq.ZMQError:
                    mangler.mangled += 1  # nobody there: lost
            due = [entry for entry in due if entry[0] > now]

    try:
        with in_thread(run):
            yield
    finally:
        worker.close()
        endpoint.close()
        context.term()
