"""Messages to bytes and back. What arrives is bounded in size and checked for shape before anyone sees it."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from sonoran.draftworker.messages import ToClient, ToWorker
from sonoran.errors import WorkerError

MAX_MESSAGE_BYTES = 16 * 2**20
"""Longest message either way: a prompt of a million tokens, with room to spare."""

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_to_client = msgspec.msgpack.Decoder(ToClient)
# What a decoder raises on hostile bytes: bad shape, bad UTF-8, deep nesting, unhashable keys.
_MALFORMED = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError, TypeError)


def encode(message: ToWorker | ToClient) -> bytes:
    """Return the bytes of a message. Raises WorkerError when it is too long to be accepted."""
    data = _encoder.encode(message)
    if len(data) > MAX_MESSAGE_BYTES:
        raise WorkerError(
            f"a message of {len(data)} bytes exceeds the {MAX_MESSAGE_BYTES} that the worker takes"
        )
    return data


def decode_to_worker(data: bytes) -> ToWorker:
    """Read a client's message. Raises WorkerError when it is none."""
    return _decode(_to_worker, data)


def decode_to_client(data: bytes) -> ToClient:
    """Read a worker's message. Raises WorkerError when it is none."""
    return _decode(_to_client, data)


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    if len(data) > MAX_MESSAGE_BYTES:
        raise WorkerError(f"a message of {len(data)} bytes exceeds the limit of {MAX_MESSAGE_BYTES}")
    try:
        return decoder.decode(data)
    except _MALFORMED as error:
        raise WorkerError(f"a message of {len(data)} bytes makes no sense: {error}") from error
