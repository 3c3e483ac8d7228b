"""The noise of ``sampling.noise`` in NumPy, as docs/exactness.md specifies it, for arrays of any shape."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sonoran.sampling.noise import UNIFORM_BITS, Stream
from tests.oracles import portable

Uint32Array = NDArray[np.uint32]

_MASK32 = 0xFFFFFFFF
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike], key: tuple[int, int]) -> Uint32Array:
    """Apply Philox4x32-10 to counters that broadcast to one shape; return the four words in a last axis."""
    words = np.broadcast_arrays(*(np.asarray(word, np.uint64) for word in counter))
    c0, c1, c2, c3 = words
    low, shift = np.uint64(_MASK32), np.uint64(32)
    k0, k1 = key
    for _ in range(10):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (p1 >> shift) ^ c1 ^ np.uint64(k0), p1 & low, (p0 >> shift) ^ c3 ^ np.uint64(k1), p0 & low,
        )  # fmt: skip
        k0, k1 = (k0 + _WEYL[0]) & _MASK32, (k1 + _WEYL[1]) & _MASK32
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def words(seed: int, position: ArrayLike, block: ArrayLike, stream: Stream) -> Uint32Array:
    """Return the four words of each counter block; ``seed`` is taken modulo 2**64."""
    at = np.asarray(position, np.int64)
    counter = (block, at & _MASK32, at >> 32, int(stream))
    return philox(counter, (seed & _MASK32, (seed >> 32) & _MASK32))


def gumbel(seed: int, position: ArrayLike, token_ids: ArrayLike) -> portable.Float64Array:
    """Return standard Gumbel noise, float64, one number for each token id; positions broadcast with the ids.

    ``n`` is the 52-bit number made of a word of stream 0 and the first 20 bits of the same word of stream 1,
    ``v = (n + 1/2) / 2**52`` and the noise is ``-log(-log(1 - v))``, at most 36.74 and at least -3.61.
    """
    ids = np.asarray(token_ids, np.int64)
    high = _token_words(seed, position, ids, Stream.GUMBEL_HIGH)
    low = _token_words(seed, position, ids, Stream.GUMBEL_LOW)
    n = (high << np.int64(20)) | (low >> np.int64(12))
    v = (n.astype(np.float64) + 0.5) * 2.0**-UNIFORM_BITS
    return -portable.log(-portable.log(1.0 - v))


def uniform_bits(seed: int, position: int, stream: Stream) -> int:
    """Return a uniform 52-bit integer for the position."""
    block = words(seed, position, 0, stream)
    return (int(block[0]) << 20) | (int(block[1]) >> 12)


def derive_seed(seed: int, index: int) -> int:
    """Return the seed of the ``index``-th text of a request (``n`` > 1); the first keeps the seed."""
    if index == 0:
        return seed % 2**64
    block = words(seed, index, 0, Stream.SEED)
    return (int(block[0]) << 32) | int(block[1])


def _token_words(seed: int, position: ArrayLike, ids: NDArray[np.int64], stream: Stream) -> NDArray[np.int64]:
    blocks = words(seed, position, ids >> 2, stream)
    picked = np.take_along_axis(blocks, (ids & 3)[..., None], axis=-1)[..., 0]
    return picked.astype(np.int64)
