"""What target side and draft worker say to each other: typed messages, encoded with MessagePack.

A client opens with ``Hello`` and gets ``Welcome`` or ``Refusal``. ``Prefill`` announces a sequence, ``Speculate`` asks
for the speculations of one round and is the only request with a timely reply (``Speculations``); ``Free`` forgets
sequences, ``Heartbeat`` is echoed, ``StatsRequest`` is answered by ``Stats``, ``Bye`` ends.

Every sequence carries a generation that grows whenever the client starts it over (preemption, a worker that came back).
A message of an older generation is dropped by whoever receives it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sonoran.types import Origin

PROTOCOL_VERSION = 1

HELLO_FIRST = "this draft worker does not know you: say hello first"
"""Reason of the ``Refusal`` to a client that the worker forgot, or that outlived a worker: begin again."""


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The client introduces itself; ``fingerprint`` is that of its vocabulary."""

    version: int
    fingerprint: str
    vocab_size: int  # of the target; ids from here on are never proposed
    eos_ids: list[int]
    settings: dict[str, Any]  # of the speculation, see draftworker.settings


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    """The worker accepts: what it can do."""

    version: int
    fingerprint: str
    model: str
    context_length: int
    heartbeat_s: float  # a silent client is evicted after a few of these


class Refusal(msgspec.Struct, tag="refusal", frozen=True):
    """The worker declines, or a request made no sense; the text is for the user."""

    reason: str


class Prefill(msgspec.Struct, tag="prefill", frozen=True):
    """A sequence begins (or begins anew): its tokens so far and how it is sampled."""

    sequence: int
    generation: int
    tokens: list[int]
    prompt_length: int
    seed: int
    params: dict[str, Any]  # fields of SamplingParams that differ from their defaults
    verification: str


class Item(msgspec.Struct, array_like=True, frozen=True):
    """One sequence's part of a round: what was committed since the worker last heard, and how many tokens to draft.

    ``accepted`` is k of the last outcome, whose bonus token is the last of ``tokens``; -1 when the worker's last
    speculation was not verified.
    """

    sequence: int
    generation: int
    base: int  # committed tokens before ``tokens``
    tokens: list[int]
    wanted: int
    accepted: int


class Speculate(msgspec.Struct, tag="speculate", frozen=True):
    """Ask for the speculations of one round."""

    round: int
    items: list[Item]


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """One speculation. ``known`` is false when the worker lacks the sequence and wants a ``Prefill``.

    ``laws`` has one entry per token under the rejection rule: ``[]`` for a point mass, ``[size]`` for the uniform law,
    ``[ids, probabilities]`` as little-endian int32 and float64 bytes for a sparse one.
    """

    sequence: int
    generation: int
    known: bool
    origin: Origin
    tokens: list[int]
    laws: list[list[Any]]
    fan_out: list[int]  # in force while the worker predicted the outcome of the previous speculation


class Speculations(msgspec.Struct, tag="speculations", frozen=True):
    """Reply to ``Speculate``, in the order of its items."""

    round: int
    answers: list[Answer]
    hidden_ms: float  # draft work since the last reply, done while the target verified
    exposed_ms: float  # draft work that this reply waited for (backup just in time)


class Free(msgspec.Struct, tag="free", frozen=True):
    """Forget sequences that ended or were cancelled."""

    sequences: list[int]


class Heartbeat(msgspec.Struct, tag="heartbeat", frozen=True):
    """Echoed with the same number by the worker."""

    number: int


class StatsRequest(msgspec.Struct, tag="stats_request", frozen=True):
    """Ask for the worker's counters. ``trace`` spans of its work are kept from now on; 0 ends that, and asks for them."""

    trace: int | None = None


class Stats(msgspec.Struct, tag="stats", frozen=True):
    """Counters of the worker for this client."""

    values: dict[str, Any]


class Bye(msgspec.Struct, tag="bye", frozen=True):
    """The client leaves; everything it had is freed."""


ToWorker = Hello | Prefill | Speculate | Free | Heartbeat | StatsRequest | Bye
ToClient = Welcome | Refusal | Speculations | Heartbeat | Stats
