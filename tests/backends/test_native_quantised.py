"""Native logits with quantised weights against the reference that rounds activations in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sonoran.backends.native import packed_format
from sonoran.config import Precision
from sonoran.errors import ConfigError
from sonoran.models.source import ModelFile, open_model
from sonoran.models.tensors import CONVERTED_TYPES
from tests.backends.native_oracle import Oracle, native, text, trunk
from tests.native.packing import SMALL, SUPER
from tests.tiny_models import make_gguf, make_hf_dir

pytest.importorskip("torch")

# Inputs of 96, 160 and 96: whole chunks of 32, but no whole groups of 256.
NARROW: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 160, "head_dim": 24, "vocab_size": 331}


def relative_errors(model_file: ModelFile, quantize: Precision | None = None) -> np.ndarray:
    """Root-mean-square error of each row's logits, as a fraction of their deviation, over short texts."""
    oracle, model = Oracle(model_file, quantize), native(model_file, quantize=quantize)
    errors = []
    for seed in range(6):
        rows = trunk(text(12, seed))
        expected, got = oracle.forward(rows), model.forward(rows)
        assert expected.std() > 0.5
        errors.append(np.sqrt(np.mean((got - expected) ** 2, axis=1)) / expected.std())
    return np.concatenate(errors)


def assert_agrees(model_file: ModelFile, quantize: Precision | None = None) -> None:
    errors = relative_errors(model_file, quantize)
    # Both round the same activations to integers. One that lies at the edge of two codes may go either way;
    # such a row differs by a step of the 8-bit codes, all others by float32 rounding only.
    assert np.quantile(errors, 0.2) < 1e-5
    assert errors.max() < 0.08


@pytest.mark.parametrize("kind", [kind for kind in SMALL if kind != "Q3_0"])
def test_groups_of_32(tmp_path: Path, kind: str) -> None:
    make_gguf(tmp_path / "tiny.gguf", "qwen2", kind, **NARROW)
    assert_agrees(open_model(tmp_path / "tiny.gguf"))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", SUPER)
def test_groups_of_256(tmp_path: Path, kind: str, tied: bool) -> None:
    make_gguf(tmp_path / "tiny.gguf", "llama", kind, tied=tied, vocab_size=331)
    assert_agrees(open_model(tmp_path / "tiny.gguf"))


@pytest.mark.parametrize("kind", CONVERTED_TYPES)
def test_types_that_are_converted(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    make_gguf(tmp_path / "tiny.gguf", "llama", {"default": kind, "layers.0.v": "IQ3_S"}, vocab_size=331)
    model_file = open_model(tmp_path / "tiny.gguf")
    assert packed_format(model_file.tensors["layers.0.q"], None) == CONVERTED_TYPES[kind]
    assert packed_format(model_file.tensors["layers.0.q"], "int3") == ("Q2_K" if kind[0] == "T" else "Q4_0")
    assert_agrees(model_file)
    (record,) = caplog.records  # one for the model, whatever is in it
    assert "matrices of " in record.getMessage() and "IQ3_S (" in record.getMessage()
    assert (f"{kind} (" in record.getMessage()) is (CONVERTED_TYPES[kind] == "Q8_0")


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_files_that_mix_formats(tmp_path: Path, arch: str) -> None:
    """Queries, keys and values of a layer in formats with different groups: Q4_K_M files, and worse."""
    types = {
        "default": "Q4_K", "embed": "Q8_0", "output": "Q6_K", "v": "Q5_0", "layers.1.k": "F16",
        "down": "Q6_K", "layers.0.up": "BF16", "layers.1.gate": "Q4_1",
    }  # fmt: skip
    make_gguf(tmp_path / "tiny.gguf", arch, types)
    model_file = open_model(tmp_path / "tiny.gguf")
    assert {info.dtype for info in model_file.tensors.values()} == {*types.values(), "F32"}
    assert_agrees(model_file)


@pytest.mark.parametrize("quantize", ["int8", "int4", "int3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_directories_quantised_on_load(tmp_path: Path, dtype: str, quantize: Precision) -> None:
    make_hf_dir(tmp_path / "tiny", "llama", dtype, **NARROW)
    model_file = open_model(tmp_path / "tiny")
    kinds = {
        name: packed_format(info, quantize) for name, info in model_file.tensors.items() if "norm" not in name
    }
    assert kinds["embed"] == kinds["output"] == "Q8_0"
    assert kinds["layers.1.down"] == {"int8": "Q8_0", "int4": "Q4_0", "int3": "Q3_0"}[quantize]
    assert kinds["layers.1.q"] == {"int8": "Q8_0", "int4": "Q4_0", "int3": "Q4_0"}[quantize]
    assert_agrees(model_file, quantize)
    assert native(model_file, quantize=quantize).weight_bytes < native(model_file).weight_bytes / 1.7


def test_bf16_on_load_halves_float32_and_leaves_the_rest(tmp_path: Path) -> None:
    make_hf_dir(tmp_path / "wide", "qwen3", **NARROW)
    make_gguf(tmp_path / "tiny.gguf", "qwen2", {"default": "F32", "up": "Q8_0", "down": "F16"}, **NARROW)
    wide, mixed = open_model(tmp_path / "wide"), open_model(tmp_path / "tiny.gguf")
    assert_agrees(wide, "bf16")
    assert_agrees(mixed, "bf16")
    full = native(wide).weight_bytes
    assert native(wide, quantize="bf16").weight_bytes == full / 2
    assert packed_format(mixed.tensors["layers.0.up"], "bf16") == "Q8_0"
    assert packed_format(mixed.tensors["layers.0.down"], "bf16") == "F16"


def test_widths_that_do_not_fit_groups_keep_their_format(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_hf_dir(tmp_path / "tiny", "llama", hidden_size=64, intermediate_size=104, head_dim=16)
    model_file = open_model(tmp_path / "tiny")
    assert packed_format(model_file.tensors["layers.0.down"], "int8") == "F32"
    assert packed_format(model_file.tensors["layers.0.up"], "int8") == "Q8_0"
    assert_agrees(model_file, "int8")
    (record,) = caplog.records
    expected = "2 of 16 matrices keep their precision under quantize=int8: rows of 104 values are no multiple"
    assert expected in record.getMessage()
    caplog.clear()
    native(model_file, quantize="bf16")
    native(model_file)
    assert not caplog.records


def test_fewer_bits_are_further_from_the_original(tmp_path: Path) -> None:
    make_hf_dir(tmp_path / "tiny", "llama", **NARROW)
    model_file = open_model(tmp_path / "tiny")
    rows = trunk(text(30))
    original = native(model_file).forward(rows)
    modes: list[Precision] = ["bf16", "int8", "int4", "int3"]
    errors = [np.abs(native(model_file, quantize=mode).forward(rows) - original).mean() for mode in modes]
    assert 0 < errors[0] < errors[1] < errors[2] < errors[3] < original.std()


def test_an_unknown_mode_names_the_nearest(tmp_path: Path) -> None:
    make_hf_dir(tmp_path / "tiny", "llama", **NARROW)
    with pytest.raises(ConfigError, match="unknown quantize 'int-8'; did you mean 'int8'"):
        native(open_model(tmp_path / "tiny"), quantize="int-8")
