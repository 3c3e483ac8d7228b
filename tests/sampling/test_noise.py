"""Noise: published Philox vectors, the pinned specification, the NumPy oracle, distribution and independence."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sonoran.sampling import noise
from sonoran.sampling.noise import Stream
from tests.oracles import noise as oracle
from tests.oracles.portable import MAX_VOCAB

PINNED = [
    "-0x1.8f8b0598b4befp-2",
    "0x1.4e2504a450313p-1",
    "-0x1.4ea762d297f4ep-2",
    "-0x1.16b6cc0fcb138p-13",
    "0x1.bb1717e631877p+0",
    "0x1.135fa07eb2630p+0",
]

# Known-answer vectors of Random123 for philox4x32-10.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def gumbel(seed, position, ids):
    return noise.gumbel(seed, position, np.asarray(ids, np.int32))


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_philox_known_answers(counter, key, expected):
    block, low, high, stream = counter
    assert noise.words(key[0] | key[1] << 32, low | high << 32, block, stream) == expected
    assert tuple(int(word) for word in oracle.philox(counter, key)) == expected


seeds = st.integers(-(2**63), 2**64 - 1)
positions = st.integers(0, 2**62)


@given(seeds, positions, st.integers(0, 2**32 - 1), st.sampled_from(Stream))
def test_numbers_equal_the_oracle(seed, position, block, stream):
    assert noise.words(seed, position, block, stream) == tuple(
        oracle.words(seed, position, block, stream).tolist()
    )
    assert noise.uniform_bits(seed, position, stream) == oracle.uniform_bits(seed, position, stream)
    assert noise.derive_seed(seed, block) == oracle.derive_seed(seed, block)


@given(seeds, positions, st.lists(st.integers(0, MAX_VOCAB - 1), max_size=40))
def test_gumbel_equals_the_oracle_to_the_bit(seed, position, ids):
    found = gumbel(seed, position, ids)
    assert found.dtype == np.float64
    assert found.tobytes() == oracle.gumbel(seed, position, ids).tobytes()


def test_gumbel_of_many_tokens_equals_the_oracle():
    ids = np.random.default_rng(0).integers(0, MAX_VOCAB, 5000)
    for seed, position in ((0, 0), (2**64 - 1, 2**40 + 3)):
        assert np.array_equal(gumbel(seed, position, ids), oracle.gumbel(seed, position, ids))


def test_gumbel_follows_the_written_specification():
    """docs/exactness.md, step by step, with Python integers and the library's logarithm."""
    seed, position = 0x0123456789ABCDEF, 2**33 + 17
    for token in (0, 1, 2, 3, 4, 151935, 262143):
        words = [noise.words(seed, position, token // 4, stream)[token % 4] for stream in (0, 1)]
        n = words[0] * 2**20 + words[1] // 2**12
        v = (n + 0.5) / 2**52
        expected = -np.log(-np.log1p(-v))
        assert gumbel(seed, position, [token])[0] == pytest.approx(expected, rel=1e-12)


def test_gumbel_is_pinned():
    values = gumbel(42, 7, [0, 1, 2, 3, 1000, 151935])
    assert [value.hex() for value in values.tolist()] == PINNED


def test_random_access():
    """Any subset in any order has the same values: nothing depends on what else is asked for."""
    every = gumbel(5, 11, np.arange(1000))
    some = np.array([999, 3, 512, 4])
    assert np.array_equal(gumbel(5, 11, some), every[some])


def test_gumbel_distribution():
    values = np.concatenate([gumbel(3, position, np.arange(10_000)) for position in range(20)])
    assert stats.kstest(values, stats.gumbel_r.cdf).pvalue > 1e-3


def test_uniform_distribution():
    values = [noise.uniform(9, position, Stream.ACCEPT) for position in range(20_000)]
    counts, _ = np.histogram(values, bins=50, range=(0, 1))
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("step", [(0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 4), (2**32, 0, 0), (0, 2**32, 0)])
def test_neighbours_are_independent(step):
    """Chi-square of the joint distribution of two draws that differ by (seed, position, token)."""
    tokens = np.arange(50_000)
    first = np.exp(-np.exp(-gumbel(77, 1000, tokens)))
    second = np.exp(-np.exp(-gumbel(77 + step[0], 1000 + step[1], tokens + step[2])))
    table, _, _ = np.histogram2d(first, second, bins=12, range=[[0, 1], [0, 1]])
    assert stats.chisquare(table.ravel()).pvalue > 1e-4
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02


def test_streams_are_independent():
    draws = {
        stream: np.array([noise.uniform(1, position, stream) for position in range(4000)])
        for stream in Stream
    }
    for a in Stream:
        for b in Stream:
            if a < b:
                assert abs(np.corrcoef(draws[a], draws[b])[0, 1]) < 0.06


def test_low_bits_matter():
    """The two words of a token differ, and the last bits of a 52-bit draw are uniform too."""
    for block in range(10):
        high = noise.words(1, 2, block, Stream.GUMBEL_HIGH)
        low = noise.words(1, 2, block, Stream.GUMBEL_LOW)
        assert not set(high) & set(low)
    fraction = np.array([noise.uniform_bits(1, p, Stream.SAMPLE) % 2**20 for p in range(5000)]) / 2**20
    assert stats.kstest(fraction, "uniform").pvalue > 1e-3


def test_derived_seeds():
    derived = [noise.derive_seed(-1, index) for index in range(1000)]
    assert derived[0] == 2**64 - 1
    assert len(set(derived)) == 1000
    assert all(0 <= seed < 2**64 for seed in derived)
    assert noise.derive_seed(-1, 5) == noise.derive_seed(2**64 - 1, 5)
