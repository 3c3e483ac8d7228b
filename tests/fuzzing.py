"""Files damaged at random, and what must hold for each: it is read, or refused in one line that names it."""

from __future__ import annotations

import copy
import json
import random
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sonoran.errors import SonoranError

LONGEST_MESSAGE = 1000
MEMORY = 600 << 20  # bytes that all attempts together may add to the process

Mutate = Callable[[random.Random, bytes, Path], bytes]

NASTY: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 10**30, 10**400, 0.5, -0.0, 1e308, 1e-320,
    float("nan"), float("inf"), "", "x", "llama3", "\x00", "\ud83d", "é" * 3000, "[/red]\x1b[31m\n", "<|im_end|>",
    [], {}, [1], ["a"], [None], {"x": 1}, {"type": "ByteLevel"}, [[[]]], [{"name": 1}], {"content": None}, [1, "a", {}],
    "{{ x }}", "{% if %}", "[" * 300,
)  # fmt: skip


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of a nested value, long lists and mappings only in part."""
    yield at
    if isinstance(value, dict):
        for key in list(value)[:60]:
            yield from paths(value[key], (*at, key))
    elif isinstance(value, list):
        for i in range(min(len(value), 8)):
            yield from paths(value[i], (*at, i))


def mutated_value(rng: random.Random, value: Any) -> Any:
    """A JSON value with one to three places replaced, removed, renamed or repeated."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        places = [place for place in paths(value) if place]
        if not places:
            return rng.choice(NASTY)
        *parents, last = rng.choice(places)
        holder = value
        for key in parents:
            holder = holder[key]
        action = rng.random()
        if action < 0.6:
            holder[last] = copy.deepcopy(rng.choice(NASTY))
        elif action < 0.75:
            del holder[last]
        elif action < 0.85 and isinstance(holder, dict):
            holder[rng.choice(("x", "type", "id", "", "ä"))] = holder.pop(last)
        elif isinstance(holder, list):
            holder.extend(copy.deepcopy(holder[:50]))
        else:
            holder[last] = [holder[last]]
    return value


def mutated_bytes(rng: random.Random, data: bytes, end: int | None = None) -> bytes:
    """Bytes cut off, flipped, replaced by extreme numbers, repeated or removed, all before ``end``."""
    end = len(data) if end is None else end
    result = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(max(1, min(end, len(result))))
        action = rng.random()
        if action < 0.15:
            del result[at:]
        elif action < 0.45 and result:
            result[at % len(result)] ^= 1 << rng.randrange(8)
        elif action < 0.75:
            number = rng.choice((0, 1, 2**16, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1))
            packed = struct.pack("<Q", number)[: rng.choice((1, 4, 8))]
            result[at : at + len(packed)] = packed
        elif action < 0.85:
            result[at:at] = result[at : at + rng.randint(1, 64)]
        else:
            del result[at : at + rng.randint(1, 64)]
    return bytes(result)


def mutated_json(rng: random.Random, data: bytes) -> bytes:
    """A JSON text: mostly well-formed with wrong values, sometimes nested without end, or not JSON at all."""
    choice = rng.random()
    if choice < 0.8:
        return json.dumps(mutated_value(rng, json.loads(data))).encode()
    if choice < 0.85:
        brackets = "[" if rng.random() < 0.5 else '{"a":'
        at = data.find(b":") + 1
        return data[:at] + brackets.encode() * rng.choice((200, 2000, 100_000)) + data[at:]
    return mutated_bytes(rng, data)


def check_message(text: str, *named: str) -> None:
    """Assert that an error is one printable line of bounded length that says which file, or which part, is meant."""
    assert text.isprintable(), repr(text)
    assert len(text) <= LONGEST_MESSAGE, text
    assert any(name in text for name in named), text


def damage(file: Path, mutate: Mutate, use: Callable[[], None], count: int, *named: str, seed: object) -> int:
    """Damage a file ``count`` times and use it; return how many were refused. The file is intact at the end.

    AssertionError for anything but a SonoranError that ``check_message`` likes, and for memory beyond MEMORY. What
    failed is kept beside the file.
    """
    rng = random.Random(str(seed))
    intact = file.read_bytes()
    use()  # else nothing that is changed below would be looked at
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for _ in range(count):
        damaged = mutate(rng, intact, file)
        file.write_bytes(damaged)
        try:
            use()
        except SonoranError as error:
            refused += 1
            check_message(str(error), *named)
        except BaseException as error:
            kept = file.with_name(f"kept-{file.name}")
            kept.write_bytes(damaged)
            pytest.fail(f"{type(error).__name__}: {error}; the file is {kept}")
        finally:
            file.write_bytes(intact)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < MEMORY, f"{file.name}: {grown >> 20} MB"
    return refused
