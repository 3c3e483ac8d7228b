"""Row operations: the compiled ones equal the NumPy definition in every token and every bit."""

import math
import subprocess
import sys

import numpy as np
import pytest

from sonoran.sampling import rowops
from sonoran.sampling.rowops import Cut
from tests.oracles import portable
from tests.oracles import rowops as reference


def make_row(rng, size):
    row = rng.normal(size=size) * rng.choice([0.0, 0.1, 1.0, 3.0, 10.0])
    if rng.random() < 0.4:
        row = np.round(row * 2) / 2  # many ties
    if rng.random() < 0.3:
        row[rng.random(size) < 0.5] = -np.inf
        row[rng.integers(size)] = 0.0
    if rng.random() < 0.2:
        row = np.where(row == 0, rng.choice([0.0, -0.0], size), row)
    return row.astype(np.float32)


def make_cut(rng):
    return Cut(
        1.0 / float(rng.choice([0.001, 0.3, 0.7, 1.0, 1.3, 5.0])),
        int(rng.choice([0, 0, 1, 3, 50, 700])),
        float(rng.choice([1.0, 1.0, 0.95, 0.5, 0.01, 1 - 1e-9, 1 - 2**-53])),
        float(rng.choice([0.0, 0.0, 1e-5, 0.05, 0.5, 1.0])),
    )


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 200, 1000, 4097])
def test_native_equals_reference(size):
    rng = np.random.default_rng(size)
    for _ in range(120):
        row, cut = make_row(rng, size), make_cut(rng)
        seed, position = int(rng.integers(2**63)), int(rng.integers(2**34))
        n, exclude = int(rng.choice([1, 2, 5, 40])), int(rng.choice([-1, 0, size // 2]))
        limit = int(rng.choice([0, 0, 1, 10, 300]))
        for found, expected in zip(
            rowops.select(row, cut, limit), reference.select(row, cut, limit), strict=True
        ):
            assert found.dtype == expected.dtype
            assert np.array_equal(found, expected)
        assert np.array_equal(
            rowops.coupled_top(row, cut, seed, position, n, exclude),
            reference.coupled_top(row, cut, seed, position, n, exclude),
        )
        assert np.array_equal(rowops.top(row, n, exclude), reference.top(row, n, exclude))
        assert rowops.argmax(row) == reference.argmax(row)
        bits, token = int(rng.integers(2**52)), int(rng.integers(-1, size + 1))
        assert rowops.inverse_sample(row, cut, bits) == reference.inverse_sample(row, cut, bits)
        assert rowops.mass(row, cut, token) == reference.mass(row, cut, token)
        assert rowops.logsumexp(row) == reference.logsumexp(row)


@pytest.mark.parametrize("spread", [0.02, 2.5, 8.0])
def test_native_equals_reference_on_a_large_vocabulary(spread):
    rng = np.random.default_rng(8)
    row = (rng.normal(size=151_936) * spread).astype(np.float32)
    for cut in (Cut(), Cut(1 / 0.7, 0, 0.95, 0.0), Cut(1.0, 50, 0.9, 0.0), Cut(1 / 1.3, 5000, 1.0, 1e-4)):
        for seed in (1, 2**64 - 1):
            found = rowops.coupled_top(row, cut, seed, 12, 6)
            assert np.array_equal(found, reference.coupled_top(row, cut, seed, 12, 6))
        for found, expected in zip(rowops.select(row, cut), reference.select(row, cut), strict=True):
            assert np.array_equal(found, expected)


def test_native_weights_equal_reference():
    rng = np.random.default_rng(5)
    x = np.concatenate([-(10.0 ** rng.uniform(-12, 3, 100_000)), [0.0, -0.0, -40.0, -32.0, -np.inf]])
    found = rowops.weights(x)
    assert found.dtype == np.int64
    assert np.array_equal(found, portable.weights(x))
    assert np.array_equal(rowops.weights(x[::-3]), portable.weights(x[::-3]))


SYMBOLS = [
    "argmax",
    "top",
    "select",
    "coupled_top",
    "inverse",
    "mass",
    "weights",
    "logsumexp",
    "words",
    "gumbel",
]


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_an_extension_without_an_operation_is_refused_at_import(symbol):
    code = f"import sonoran._native as n; del n.sampling_{symbol}; import sonoran.sampling.rowops, sonoran.sampling.noise"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode != 0
    assert f"ImportError: cannot import name 'sampling_{symbol}'" in result.stderr


def test_weights_are_the_exponential():
    x = np.linspace(-45.0, 0.0, 200_001)
    expected = np.exp(x) * 2**portable.WEIGHT_BITS
    assert np.max(np.abs(portable.weights(x) - expected)) <= 1.5
    assert portable.weights(np.array([0.0]))[0] == 2**portable.WEIGHT_BITS
    assert portable.weights(np.array([-np.inf]))[0] == 0


def test_log_is_the_logarithm():
    rng = np.random.default_rng(1)
    near_one = 1 - 10.0 ** -rng.uniform(0, 15, 1000)
    values = np.concatenate([rng.random(100_000), near_one, 2.0 ** rng.uniform(-50, 60, 1000)])
    expected = np.array([math.log(value) for value in values])
    assert np.all(np.abs(portable.log(values) - expected) <= 4e-16 * np.abs(expected))


def test_weights_do_not_depend_on_the_order():
    rng = np.random.default_rng(2)
    row = (3 * rng.normal(size=1000)).astype(np.float32)
    shuffled = rng.permutation(1000)
    assert rowops.logsumexp(row) == rowops.logsumexp(row[shuffled])
    one, other = rowops.select(row, Cut(1, 0, 0.9, 0)), rowops.select(row[shuffled], Cut(1, 0, 0.9, 0))
    assert set(one.ids.tolist()) == set(shuffled[other.ids].tolist())


def test_inverse_sample_splits_the_unit_interval_by_weight():
    row = np.log(np.array([0.5, 0.125, 0.375])).astype(np.float32)
    bits = [int((i + 0.5) / 4000 * 2**52) for i in range(4000)]
    counts = np.bincount([rowops.inverse_sample(row, Cut(), b) for b in bits], minlength=3)
    assert counts.tolist() == [2000, 500, 1500]
    assert rowops.inverse_sample(row, Cut(), 0) == 0
    assert rowops.inverse_sample(row, Cut(), 2**52 - 1) == 2
