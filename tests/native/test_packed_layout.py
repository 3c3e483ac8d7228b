"""Packed weights hold exactly the values of the file: decoding equals the gguf package, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sonoran import _native
from sonoran.errors import ModelError
from tests.native.packing import (
    DENSE,
    FORMATS,
    SMALL,
    SUPER,
    decode,
    exact,
    group_of,
    multiply,
    pack,
    present_sets,
    random_rows,
)


def assert_same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=40, deadline=None)
@given(outputs=st.integers(1, 70), groups=st.integers(1, 11), seed=st.integers(0, 2**32 - 1))
def test_decoding_gives_the_bits_of_the_file(kind: str, outputs: int, groups: int, seed: int) -> None:
    inputs = groups * (37 if kind in DENSE else group_of(kind))
    rows = random_rows(kind, outputs, inputs, np.random.default_rng(seed))
    assert_same_bits(decode(pack(kind, rows, inputs), outputs, inputs), exact(kind, rows))


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_all_sixteen_bit_patterns_survive(kind: str) -> None:
    patterns = np.arange(2**16, dtype=np.uint16)
    rows = patterns.reshape(32, -1).view(np.uint8)
    got = decode(pack(kind, rows, 2048), 32, 2048).reshape(-1)
    expected = exact(kind, rows).reshape(-1)
    finite = np.isfinite(expected)
    assert_same_bits(got[finite], expected[finite])
    np.testing.assert_array_equal(got, expected)  # infinities, and NaN stays NaN


@pytest.mark.parametrize("kind", [kind for kind in SMALL if kind != "MXFP4"])
def test_every_scale_survives_even_the_smallest(kind: str) -> None:
    scales = np.arange(2**16, dtype=np.uint16)
    scales = scales[np.isfinite(scales.view(np.float16))]
    outputs = len(scales) // 16
    rows = random_rows(kind, outputs, 16 * 32, np.random.default_rng(1)).reshape(outputs, 16, -1)
    rows[:, :, :2] = scales.reshape(outputs, 16, 1).view(np.uint8)
    rows = rows.reshape(outputs, -1)
    assert_same_bits(decode(pack(kind, rows, 512), outputs, 512), exact(kind, rows))


def test_every_power_of_two_survives() -> None:
    """All 256 exponents of MXFP4 with all its values, in the weights and in products."""
    rows = random_rows("MXFP4", 256, 32, np.random.default_rng(1)).reshape(256, 17)
    rows[:, 0] = np.arange(256)
    rows[:, 1:] = np.arange(16) + 16 * np.arange(16)[::-1]
    packed = pack("MXFP4", rows, 32)
    with np.errstate(over="ignore"):
        values = exact("MXFP4", rows)
    assert_same_bits(decode(packed, 256, 32), values)
    one = np.zeros((1, 32), np.float32)
    one[0, 3] = 127  # a scale of one for the group
    with np.errstate(over="ignore"):
        expected = values[:, 3] * np.float32(127)
    for name in present_sets():
        np.testing.assert_array_equal(multiply(packed, one, 256, name)[0], expected)


@pytest.mark.parametrize("kind", FORMATS)
def test_memory_is_that_of_the_file_up_to_padding(kind: str) -> None:
    rows = random_rows(kind, 64, 2048, np.random.default_rng(2))
    packed = pack(kind, rows, 2048).bytes
    # Sub-scales of 6 bits are spread to 8, and super-blocks grow to whole cache lines.
    assert rows.nbytes <= packed <= rows.nbytes * (1.10 if kind in SUPER else 1.0)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("change", [-1, 1])
def test_wrong_byte_counts_are_refused(kind: str, change: int) -> None:
    rows = random_rows(kind, 3, 512, np.random.default_rng(3)).reshape(-1)
    wrong = np.resize(rows, rows.size + change)
    with pytest.raises(ModelError, match=f"expected {rows.size} bytes"):
        _native.PackedMatrix(kind, kind, 3, 512, wrong)


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind not in DENSE])
def test_rows_of_part_of_a_block_are_refused(kind: str) -> None:
    group = group_of(kind)
    with pytest.raises(
        ModelError, match=f"{kind} needs a multiple of {group} inputs, got .* 2 x {group + 16}"
    ):
        _native.PackedMatrix(kind, kind, 2, group + 16, np.zeros(1000, np.uint8))


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(ModelError, match="unsupported weight format IQ2_XS"):
        _native.PackedMatrix("IQ2_XS", "IQ2_XS", 1, 256, np.zeros(74, np.uint8))
