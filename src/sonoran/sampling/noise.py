"""Counter-based noise: a pure function of (seed, position, token), the same on every machine.

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Its
key is the request's seed, its counter is (token // 4, position, stream); docs/exactness.md has the whole
specification. Seeds are taken modulo 2**64.
"""

from __future__ import annotations

from enum import IntEnum

from sonoran._native import sampling_gumbel, sampling_words
from sonoran.types import Float64Array, IntArray

UNIFORM_BITS = 52


class Stream(IntEnum):
    """Last counter word: what a number is used for. Different streams are independent."""

    GUMBEL_HIGH = 0
    GUMBEL_LOW = 1
    ACCEPT = 2
    SAMPLE = 3
    DRAFT = 4
    SEED = 5


def words(seed: int, position: int, block: int, stream: Stream) -> tuple[int, int, int, int]:
    """Return the four 32-bit words of a counter block."""
    found: tuple[int, int, int, int] = sampling_words(seed % 2**64, position, block, int(stream))
    return found


def gumbel(seed: int, position: int, ids: IntArray) -> Float64Array:
    """Return standard Gumbel noise, float64[n], one number for each token id, int32[n].

    ``n`` is the 52-bit number made of a word of stream 0 and the first 20 bits of the same word of stream 1,
    ``v = (n + 1/2) / 2**52`` and the noise is ``-log(-log(1 - v))``, at most 36.74 and at least -3.61.
    """
    values: Float64Array = sampling_gumbel(seed % 2**64, position, ids)
    return values


def uniform_bits(seed: int, position: int, stream: Stream) -> int:
    """Return a uniform 52-bit integer for the position."""
    first, second, _, _ = words(seed, position, 0, stream)
    return (first << 20) | (second >> 12)


def uniform(seed: int, position: int, stream: Stream) -> float:
    """Return a uniform number in (0, 1) for the position: ``(n + 1/2) / 2**52``."""
    return (uniform_bits(seed, position, stream) + 0.5) * 2.0**-UNIFORM_BITS


def derive_seed(seed: int, index: int) -> int:
    """Return the seed of the ``index``-th text of a request (``n`` > 1); the first keeps the seed."""
    if index == 0:
        return seed % 2**64
    first, second, _, _ = words(seed, index, 0, Stream.SEED)
    return (first << 32) | second
