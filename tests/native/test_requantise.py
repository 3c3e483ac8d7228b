"""Fewer bits on load: the error per weight is the step of the format, and nothing already exact is lost."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sonoran import _native
from sonoran.errors import ModelError
from tests.native.packing import FORMATS, decode, exact, pack, random_rows


def lowered(values: np.ndarray, to: str) -> np.ndarray:
    return decode(pack("F32", values.view(np.uint8), values.shape[1], to), *values.shape)


def weights(seed: int, outputs: int = 21, inputs: int = 352) -> np.ndarray:
    """Rows of various sizes and shapes: normal, uniform, all of one sign, constant, zero, one outlier."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((outputs, inputs), np.float32)
    values[1::7] = rng.uniform(-1, 1, values[1::7].shape)
    values[2::7] = np.abs(values[2::7]) + 3
    values[3::7] = 0.25
    values[4::7] = 0
    values[5::7, ::40] *= 20
    return values * rng.uniform(1e-3, 10, (outputs, 1)).astype(np.float32)


def group_errors(values: np.ndarray, to: str) -> tuple[np.ndarray, np.ndarray]:
    """Absolute errors and the values they belong to, ``[groups, 32]``."""
    return np.abs(lowered(values, to) - values).reshape(-1, 32), values.reshape(-1, 32)


def rms_error(values: np.ndarray, approximation: np.ndarray) -> float:
    return float(np.sqrt(np.mean((approximation - values) ** 2)))


SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_bf16_rounds_to_nearest_even(seed: int) -> None:
    values = weights(seed)
    bits = values.view(np.uint32).astype(np.uint64)
    expected = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32)
    np.testing.assert_array_equal(lowered(values, "BF16").view(np.uint32), expected)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_8_bits_err_by_half_a_step_at_most(seed: int) -> None:
    errors, values = group_errors(weights(seed), "Q8_0")
    top = np.abs(values).max(1, keepdims=True)
    # Half a step of top / 127, and the fp16 rounding of that step over 127 codes.
    assert np.all(errors <= top * (0.5 / 127 + 2**-11) + 1e-7)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_4_bits_with_a_minimum_err_by_less_than_a_step(seed: int) -> None:
    values = weights(seed)
    errors, groups = group_errors(values, "Q4_1")
    span = np.ptp(groups, axis=1, keepdims=True)
    size = np.abs(groups).max(1, keepdims=True)
    assert np.all(errors <= span / 15 + size * 2**-10 + 1e-7)
    # Least squares never does worse than the plain choice from lowest to highest value.
    plain = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_1)
    rough = np.abs(exact("Q4_1", plain) - values).reshape(-1, 32)
    assert np.all((errors**2).sum(1) <= (rough**2).sum(1) * 1.001 + size[:, 0] ** 2 * 1e-5)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_4_bits_without_a_minimum_beat_the_plain_choice(seed: int) -> None:
    values = weights(seed)
    errors, groups = group_errors(values, "Q4_0")
    size = np.abs(groups).max(1, keepdims=True)
    # Codes go from -8 to 7 and the step from 1 / 9.2 to 1 / 6.9 of the largest value.
    assert np.all(errors <= size * (1 - 7 / 9.2) + 1e-7)
    plain = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_0)
    rough = np.abs(exact("Q4_0", plain) - values).reshape(-1, 32)
    assert np.all((errors**2).sum(1) <= (rough**2).sum(1) * 1.001 + size[:, 0] ** 2 * 1e-5)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_3_bits_beat_the_plain_choice(seed: int) -> None:
    values = weights(seed)
    errors, groups = group_errors(values, "Q3_0")
    extreme = np.take_along_axis(groups, np.abs(groups).argmax(1, keepdims=True), axis=1)
    size = np.abs(extreme)
    # Codes go from -4 to 3 and the step from 1 / 4.9 to 1 / 2.5 of the largest value.
    assert np.all(errors <= size * (1 - 3 / 4.9) + 1e-7)
    # The step is kept in fp16, which moves values that lie between two codes.
    step = np.where(extreme == 0, 1, extreme / -4)
    rough = np.abs(step * np.clip(np.round(groups / step), -4, 3) - groups)
    assert np.all((errors**2).sum(1) <= (rough**2).sum(1) * 1.01 + size[:, 0] ** 2 * 1e-5)


def test_more_bits_err_less() -> None:
    values = np.random.default_rng(5).standard_normal((64, 512), np.float32)
    errors = [rms_error(values, lowered(values, to)) for to in ("BF16", "Q8_0", "Q4_1", "Q4_0", "Q3_0")]
    assert 0 < errors[0] < errors[1] < 0.01 < errors[2] < errors[3] < 0.12 < errors[4] < 0.23


@pytest.mark.parametrize("to", ["Q8_0", "Q4_0", "Q4_1", "Q3_0"])
def test_small_integers_are_exact(to: str) -> None:
    rng = np.random.default_rng(6)
    low, high = {"Q8_0": (-127, 128), "Q4_0": (-8, 8), "Q4_1": (0, 16), "Q3_0": (-4, 4)}[to]
    values = rng.integers(low, high, (5, 10, 32)).astype(np.float32)
    values[..., :2] = (low, high - 1)
    values = values.reshape(5, 320)
    np.testing.assert_array_equal(lowered(values, to), values)


@pytest.mark.parametrize("to", ["Q8_0", "Q4_1", "BF16"])
@pytest.mark.parametrize("kind", FORMATS)
def test_any_format_is_lowered_from_its_exact_values(kind: str, to: str) -> None:
    rows = random_rows(kind, 19, 512, np.random.default_rng(7))
    got = decode(pack(kind, rows, 512, to), 19, 512)
    expected = rows if kind == to else exact(kind, rows)
    np.testing.assert_array_equal(got, exact(to, rows) if kind == to else lowered(expected, to))


def test_formats_that_are_only_read_are_refused_as_goals() -> None:
    with pytest.raises(ModelError, match="cannot quantise to Q6_K"):
        _native.PackedMatrix("F32", "Q6_K", 1, 256, np.zeros(1024, np.uint8))
