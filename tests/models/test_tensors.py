"""Types that are converted when a model is loaded: what stays exact, what is lost, a piece at a time."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from sonoran import _native
from sonoran.models import tensors
from sonoran.models.tensors import CONVERTED_TYPES, KEPT_BITS, TensorInfo, dequantize, kept_rows
from tests.tiny_weights import file_rows

TERNARY = [kind for kind, kept in CONVERTED_TYPES.items() if kept == "Q2_K"]
ROUNDED = [kind for kind, kept in CONVERTED_TYPES.items() if kept == "Q8_0"]


def tensor_of(kind: str, outputs: int = 7, inputs: int = 512) -> TensorInfo:
    rng = np.random.default_rng(4)
    rows = file_rows(kind, rng.standard_normal((outputs, inputs), np.float32) / 20, rng)
    return TensorInfo("layers.0.q", kind, (outputs, inputs), rows.reshape(-1), "blk.0.attn_q.weight")


def values_of(tensor: TensorInfo) -> np.ndarray:
    kept, rows = kept_rows(tensor)
    assert kept == CONVERTED_TYPES[tensor.dtype]
    return dequantize(TensorInfo(tensor.name, kept, tensor.shape, rows, tensor.source))


@pytest.mark.parametrize("kind", KEPT_BITS)
def test_kept_types_have_kernels_and_stay_as_they_are(kind: str) -> None:
    data = np.arange(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1] * 2, dtype=np.uint8)
    inputs = 2 * gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]
    _native.PackedMatrix(kind, kind, 1, inputs, data)
    kept, rows = kept_rows(TensorInfo("output", kind, (1, inputs), data, "output.weight"))
    assert kept == kind
    assert np.shares_memory(rows, data)


@pytest.mark.parametrize("kind", TERNARY)
def test_ternary_types_are_exact(kind: str) -> None:
    tensor = tensor_of(kind)
    expected = dequantize(tensor)
    assert len(np.unique(np.abs(expected))) > 2
    np.testing.assert_array_equal(values_of(tensor), expected)


@pytest.mark.parametrize("kind", ROUNDED)
def test_other_types_lose_what_the_warning_says(kind: str) -> None:
    tensor = tensor_of(kind)
    expected = dequantize(tensor).reshape(-1, 32)
    error = np.abs(values_of(tensor).reshape(-1, 32) - expected)
    assert expected.std() > 0
    top = np.abs(expected).max(1, keepdims=True)
    assert np.all(error <= top * (1 / 254 + 2**-11))


@pytest.mark.parametrize("kind", CONVERTED_TYPES)
def test_pieces_are_small_and_do_not_show(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = values_of(tensor_of(kind))
    sizes = []
    decode = tensors._values

    def seen(rows: np.ndarray, dtype: str) -> np.ndarray:
        values = decode(rows, dtype)
        sizes.append(values.size)
        return values

    monkeypatch.setattr(tensors, "_values", seen)
    monkeypatch.setattr(tensors, "CONVERTED_AT_ONCE", 1024)
    kept, rows = kept_rows(tensor_of(kind))
    assert sizes == [1024, 1024, 1024, 512]
    again = decode(rows.reshape(7, -1), kept)
    np.testing.assert_array_equal(again, whole)
