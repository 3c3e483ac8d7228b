"""Products of packed weights with a few rows, against a plain reference with the same rounded activations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.native.activations import product
from tests.native.packing import (
    DENSE,
    FORMATS,
    INSTRUCTION_SETS,
    SMALL,
    group_of,
    multiply,
    pack,
    random_rows,
    require_instruction_set,
    scale_bytes,
)


def activations(rng: np.random.Generator, rows: int, inputs: int) -> np.ndarray:
    """Rows of different sizes with a few outliers, as the residual stream of a model has."""
    x = rng.standard_normal((rows, inputs), np.float32) * rng.uniform(0.01, 30, (rows, 1)).astype(np.float32)
    x[:, ::97] *= 15
    return x


def assert_close(kind: str, rows: np.ndarray, x: np.ndarray, got: np.ndarray) -> None:
    expected, error = product(kind, rows, x)
    assert got.shape == expected.shape
    worst = np.abs(got - expected) / (error + 1e-30)
    assert worst.max() <= 1, f"{worst.max():.2f} times the rounding error at {np.argwhere(worst > 1)[:3]}"


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("kind", FORMATS)
def test_products_of_1_to_20_rows(kind: str, instruction_set: str) -> None:
    require_instruction_set(instruction_set)
    rng = np.random.default_rng(8)
    outputs, inputs = 83, 2 * 256 if kind not in SMALL else 256 + 96
    rows = random_rows(kind, outputs, inputs, rng)
    matrix = pack(kind, rows, inputs)
    for count in range(1, 21):
        x = activations(rng, count, inputs)
        assert_close(kind, rows, x, multiply(matrix, x, outputs, instruction_set))


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=40, deadline=None)
@given(
    outputs=st.integers(1, 130),
    groups=st.integers(1, 19),
    count=st.integers(1, 33),
    seed=st.integers(0, 2**32 - 1),
)
def test_products_of_any_shape(kind: str, outputs: int, groups: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = groups * (29 if kind in DENSE else group_of(kind))
    rows = random_rows(kind, outputs, inputs, rng)
    x = activations(rng, count, inputs)
    assert_close(kind, rows, x, multiply(pack(kind, rows, inputs), x, outputs))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind not in DENSE])
def test_the_largest_codes_do_not_overflow(kind: str, instruction_set: str) -> None:
    """All bits of codes and sub-scales set, activations of the largest magnitude and of either sign."""
    require_instruction_set(instruction_set)
    inputs = 1024
    rows = random_rows(kind, 16, inputs, np.random.default_rng(9))
    blocks = rows.reshape(16, inputs // group_of(kind), -1)
    kept = scale_bytes(kind)
    scales = blocks[..., kept].copy()
    for fill in (0x00, 0x7F, 0x80, 0xFF):
        blocks[...] = fill
        blocks[..., kept] = scales
        x = np.ones((3, inputs), np.float32)
        x[1] = -1
        x[2, ::2] = -1
        assert_close(kind, rows, x, multiply(pack(kind, rows, inputs), x, 16, instruction_set))


@pytest.mark.parametrize("kind", FORMATS)
def test_zero_rows_give_zeros(kind: str) -> None:
    rng = np.random.default_rng(10)
    rows = random_rows(kind, 33, 512, rng)
    x = activations(rng, 3, 512)
    x[1] = 0
    y = multiply(pack(kind, rows, 512), x, 33)
    np.testing.assert_array_equal(y[1], np.zeros(33))
    assert np.all(y[[0, 2]] != 0)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_activations_that_are_not_finite_are_not_hidden(kind: str, bad: float) -> None:
    rng = np.random.default_rng(11)
    rows = random_rows(kind, 20, 512, rng)
    x = activations(rng, 2, 512)
    x[1, 300] = bad
    y = multiply(pack(kind, rows, 512), x, 20)
    assert np.isfinite(y[0]).all()
    assert not np.isfinite(y[1]).any()
