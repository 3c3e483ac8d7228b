"""Messages survive the trip; anything else is refused with a WorkerError and nothing worse."""

from __future__ import annotations

import random

import pytest

from sonoran.errors import WorkerError
from sonoran.sampling.params import SamplingParams
from sonoran.ssd.messages import (
    MAX_MESSAGE_BYTES,
    Answer,
    Bye,
    Heartbeat,
    Item,
    Prefill,
    Proposal,
    Speculate,
    Speculations,
    decode_to_client,
    decode_to_worker,
    encode,
)
from tests.worker.workers import hello

PREFILL = Prefill(1, 2, [5, 6], 1, 2**64 - 1, SamplingParams(logit_bias={3: 1.5}, stop=["a"]))
LAWS = [Proposal(0, b"\0\0\0\0", b"\0" * 8), Proposal(7), Proposal()]
REPLY = Speculations(3, [Answer(1, 2, True, "primary", [4], LAWS, [2, 1])], 0.5, 0.0)
TO_WORKER = [hello(), PREFILL, Speculate(1, [Item(1, 2, 3, [4], 5, -1)]), Heartbeat(2**40), Bye()]


@pytest.mark.parametrize("message", TO_WORKER, ids=lambda m: type(m).__name__)
def test_a_message_to_the_worker_arrives_as_it_was(message: object) -> None:
    assert decode_to_worker(encode(message)) == message  # type: ignore[arg-type]


def test_a_reply_arrives_as_it_was() -> None:
    assert decode_to_client(encode(REPLY)) == REPLY


def test_a_message_that_goes_the_other_way_is_refused() -> None:
    with pytest.raises(WorkerError, match="makes no sense"):
        decode_to_worker(encode(REPLY))
    with pytest.raises(WorkerError, match="makes no sense"):
        decode_to_client(encode(PREFILL))


def test_damaged_messages_are_refused_or_read_but_never_worse() -> None:
    chance = random.Random(5)
    originals = [encode(message) for message in (*TO_WORKER, REPLY)]
    refused = 0
    for _ in range(5000):
        data = bytearray(chance.choice(originals))
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        damaged = bytes(data[: chance.randint(0, len(data))])
        for decode in (decode_to_worker, decode_to_client):
            try:
                decode(damaged)
            except WorkerError:
                refused += 1
    assert refused > 5000


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x91" * 100_000, b"\x82\xa4type\xa5hello\xa8settings" + b"\x81\xa1a" * 100_000],
    ids=["empty", "no code", "nested arrays", "nested maps"],
)
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WorkerError, match="makes no sense"):
        decode_to_worker(data)


def test_too_long_a_message_is_neither_sent_nor_read() -> None:
    with pytest.raises(WorkerError, match=str(MAX_MESSAGE_BYTES)):
        encode(Prefill(1, 1, [2**31] * (MAX_MESSAGE_BYTES // 5 + 1), 1, 0, SamplingParams()))
    with pytest.raises(WorkerError, match=str(MAX_MESSAGE_BYTES)):
        decode_to_worker(bytes(MAX_MESSAGE_BYTES + 1))
