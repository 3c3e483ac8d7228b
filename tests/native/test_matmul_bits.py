"""A row's products are the same bits alone and in any batch, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.native.packing import (
    DENSE,
    FORMATS,
    INSTRUCTION_SETS,
    group_of,
    multiply,
    pack,
    random_rows,
    require_instruction_set,
)


def assert_same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=30, deadline=None)
@given(
    outputs=st.integers(1, 100),
    groups=st.integers(1, 10),
    cuts=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_split_of_the_rows_gives_the_same_bits(
    kind: str, instruction_set: str, outputs: int, groups: int, cuts: list[int], seed: int
) -> None:
    require_instruction_set(instruction_set)
    rng = np.random.default_rng(seed)
    inputs = groups * (24 if kind in DENSE else group_of(kind))
    matrix = pack(kind, random_rows(kind, outputs, inputs, rng), inputs)
    x = rng.standard_normal((sum(cuts), inputs), np.float32)
    parts = np.split(x, np.cumsum(cuts)[:-1])
    split = np.concatenate([multiply(matrix, part, outputs, instruction_set) for part in parts])
    order = rng.permutation(len(x))
    shuffled = multiply(matrix, x[order], outputs, instruction_set)
    alone = np.concatenate([multiply(matrix, row[None], outputs, instruction_set) for row in x])
    assert_same_bits(split, alone)
    assert_same_bits(shuffled, alone[order])


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS[:-1])
@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=25, deadline=None)
@given(
    outputs=st.integers(1, 60),
    groups=st.integers(1, 9),
    count=st.integers(1, 9),
    exponent=st.sampled_from([-149, -140, -126, -60, -10, 0, 10, 40]),
    seed=st.integers(0, 2**32 - 1),
)
def test_instruction_sets_agree_with_portable_code(
    kind: str, instruction_set: str, outputs: int, groups: int, count: int, exponent: int, seed: int
) -> None:
    """Over all sizes of activations, subnormal ones included."""
    require_instruction_set(instruction_set)
    rng = np.random.default_rng(seed)
    inputs = groups * (24 if kind in DENSE else group_of(kind))
    matrix = pack(kind, random_rows(kind, outputs, inputs, rng), inputs)
    x = np.ldexp(rng.standard_normal((count, inputs), np.float32), exponent).astype(np.float32)
    got = multiply(matrix, x, outputs, instruction_set)
    assert_same_bits(got, multiply(matrix, x, outputs, "portable"))


@pytest.mark.parametrize("kind", FORMATS)
def test_ties_are_rounded_to_even_everywhere(kind: str) -> None:
    """Activations that lie half-way between two codes."""
    rng = np.random.default_rng(12)
    halves = (np.arange(512) % 253 - 126.5).astype(np.float32)
    halves[::32] = 127  # the scale of every group is 1
    matrix = pack(kind, random_rows(kind, 16, 512, rng), 512)
    even = np.where(halves == 127, 127, np.rint(halves)).astype(np.float32)
    for instruction_set in ("auto", *INSTRUCTION_SETS):
        if instruction_set != "auto":
            require_instruction_set(instruction_set)
        y = multiply(matrix, np.stack([halves, even]), 16, instruction_set)
        if kind in DENSE:
            assert np.all(y[0] != y[1])
        else:
            assert_same_bits(y[0], y[1])
