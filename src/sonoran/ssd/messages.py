"""What target side and draft worker say to each other: typed messages, encoded with MessagePack.

A client opens with ``Hello`` and gets ``Welcome`` or ``Refusal``. ``Prefill`` announces a sequence, ``Speculate`` asks
for the speculations of one round and is the only request with a timely reply (``Speculations``); ``Free`` forgets
sequences, ``Heartbeat`` is echoed, ``StatsRequest`` is answered by ``Stats``, ``Bye`` ends.

Every sequence carries a generation that grows whenever the client starts it over (preemption, a worker that came back).
A message of an older generation is dropped by whoever receives it.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from sonoran.config import MAX_NUM_SEQS, MAX_SPECULATIVE_TOKENS, Law, SpeculationSettings
from sonoran.engine.trace import MAX_SPANS
from sonoran.errors import WorkerError
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.proposals import (
    PointMass,
    ProposalDistribution,
    SparseDistribution,
    UniformDistribution,
)
from sonoran.types import Origin

PROTOCOL_VERSION = 4

MAX_SEQUENCES = MAX_NUM_SEQS
"""Sequences that a client may have, and so ask about in one round."""

MAX_FREED = 4096
"""Sequences that one message may free."""

MAX_VOCABULARY = 2**24

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Text = Annotated[str, msgspec.Meta(max_length=256)]

HELLO_FIRST = "this draft worker does not know you: say hello first"
"""Reason of the ``Refusal`` to a client that the worker forgot, or that outlived a worker: begin again."""


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The client introduces itself; ``fingerprint`` is that of its vocabulary of ``num_tokens``, padding left out."""

    version: int
    fingerprint: _Text
    vocab_size: Annotated[
        int, msgspec.Meta(ge=1, le=MAX_VOCABULARY)
    ]  # of the target; larger ids are not proposed
    eos_ids: Annotated[list[_Count], msgspec.Meta(max_length=1024)]
    settings: SpeculationSettings
    num_tokens: Annotated[int, msgspec.Meta(ge=0, le=MAX_VOCABULARY)] = 0  # 0: fingerprints must be equal


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    """The worker accepts: what it can do. ``fingerprint`` is that of the tokens that both sides have; where the target
    has more than the draft's ``num_tokens``, it is for the client to see that they are its own first ones."""

    version: int
    fingerprint: str
    model: str
    context_length: int
    heartbeat_s: float  # a silent client is evicted after a few of these
    num_tokens: int = 0


class Refusal(msgspec.Struct, tag="refusal", frozen=True):
    """The worker declines, or a request made no sense; the text is for the user."""

    reason: str


class Prefill(msgspec.Struct, tag="prefill", frozen=True):
    """A sequence begins (or begins anew): its tokens so far and how it is sampled; ``law`` is that of the target's
    sampler where it is none of the rules of ``params``."""

    sequence: int
    generation: int
    tokens: list[int]
    prompt_length: int
    seed: int
    params: SamplingParams
    law: Law | None = None


class Item(msgspec.Struct, array_like=True, frozen=True):
    """One sequence's part of a round: what was committed since the worker last heard, and how many tokens to draft.

    ``accepted`` is k of the last outcome, whose bonus token is the last of ``tokens``; -1 when the worker's last
    speculation was not verified.
    """

    sequence: int
    generation: int
    base: _Count  # committed tokens before ``tokens``
    tokens: list[int]
    wanted: Annotated[int, msgspec.Meta(ge=0, le=MAX_SPECULATIVE_TOKENS)]
    accepted: Annotated[int, msgspec.Meta(ge=-1, le=MAX_SPECULATIVE_TOKENS)]


class Speculate(msgspec.Struct, tag="speculate", frozen=True):
    """Ask for the speculations of one round."""

    round: int
    items: Annotated[list[Item], msgspec.Meta(max_length=MAX_SEQUENCES)]


class Proposal(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    """The exact q that a token was drawn from: nothing for a point mass, ``size`` for the uniform distribution over the
    ids below it, ``ids`` (ascending) and ``probabilities`` for a sparse one, as little-endian int32 and float64.
    """

    size: int = 0
    ids: bytes = b""
    probabilities: bytes = b""


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """One speculation. ``known`` is false when the worker lacks the sequence and wants a ``Prefill``.

    ``distributions`` has one entry per token under the rejection rule, and none under the others.
    """

    sequence: int
    generation: int
    known: bool
    origin: Origin
    tokens: list[int]
    distributions: list[Proposal]
    fan_out: list[int]  # in force while the worker predicted the outcome of the previous speculation


class Speculations(msgspec.Struct, tag="speculations", frozen=True):
    """Reply to ``Speculate``, in the order of its items."""

    round: int
    answers: list[Answer]
    hidden_ms: float  # draft work since the last reply, done while the target verified
    exposed_ms: float  # draft work that this reply waited for (backup just in time)


class Free(msgspec.Struct, tag="free", frozen=True):
    """Forget sequences that ended or were cancelled."""

    sequences: Annotated[list[int], msgspec.Meta(max_length=MAX_FREED)]


class Heartbeat(msgspec.Struct, tag="heartbeat", frozen=True):
    """Echoed with the same number by the worker."""

    number: int


class StatsRequest(msgspec.Struct, tag="stats_request", frozen=True):
    """Ask for the worker's counters. ``trace`` spans of its work are kept from now on; 0 ends that, and asks for them."""

    trace: Annotated[int, msgspec.Meta(ge=0, le=MAX_SPANS)] | None = None


class Stats(msgspec.Struct, tag="stats", frozen=True):
    """Counters of the worker for this client."""

    values: dict[str, Any]


class Bye(msgspec.Struct, tag="bye", frozen=True):
    """The client leaves; everything it had is freed."""


ToWorker = Hello | Prefill | Speculate | Free | Heartbeat | StatsRequest | Bye
ToClient = Welcome | Refusal | Speculations | Heartbeat | Stats


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


def encode_distribution(q: ProposalDistribution) -> Proposal:
    """Return the wire's form of a proposal distribution."""
    if isinstance(q, PointMass):
        return Proposal()
    if isinstance(q, UniformDistribution):
        return Proposal(size=q.size)
    return Proposal(ids=q.ids.astype("<i4").tobytes(), probabilities=q.probabilities.astype("<f8").tobytes())


def decode_distribution(proposal: Proposal) -> ProposalDistribution:
    """The inverse of ``encode_distribution``. Raises WorkerError for anything that is no distribution."""
    size, ids_bytes, probability_bytes = proposal.size, proposal.ids, proposal.probabilities
    if not ids_bytes and not probability_bytes:
        if size < 0:
            raise WorkerError(f"a uniform proposal over {size} tokens")
        return UniformDistribution(size) if size else PointMass()
    if (
        size
        or len(ids_bytes) % 4
        or len(probability_bytes) % 8
        or 2 * len(ids_bytes) != len(probability_bytes)
    ):
        raise WorkerError("a sparse proposal has ids and probabilities of different lengths")
    ids = np.frombuffer(ids_bytes, "<i4").astype(np.int32)
    probabilities = np.frombuffer(probability_bytes, "<f8").astype(np.float64)
    ascending = bool(np.all(np.diff(ids) > 0)) and int(ids[0]) >= 0
    if not ascending or not np.all(probabilities >= 0.0) or abs(float(probabilities.sum()) - 1.0) > 1e-6:
        raise WorkerError("a sparse proposal is not a distribution over ascending token ids")
    return SparseDistribution(ids, probabilities)
