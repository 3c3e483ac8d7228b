"""Native logits of every architecture against the fp32 reference with an fp16 cache, dense weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sonoran.models.source import open_model
from tests.backends.native_oracle import Oracle, native, text, trunk
from tests.tiny_models import LLAMA3_SCALING, make_gguf, make_hf_dir

pytest.importorskip("torch")

VOCAB = 331
# Neither the widths nor the vocabulary are multiples of the 16 lanes of the kernels.
COMMON: dict[str, Any] = {"hidden_size": 40, "intermediate_size": 56, "vocab_size": VOCAB}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tied": True}),
    "llama3-rope": ("llama", {"rope_scaling": LLAMA3_SCALING, "head_dim": 32}),
    "yarn-rope": ("qwen3", {"rope_scaling": YARN, "head_dim": 32}),
    "llama-biases": ("llama", {"attention_bias": True, "output_bias": True}),
    "one-head-per-group": ("llama", {"num_heads": 3, "num_kv_heads": 3, "head_dim": 14}),
    "two-heads-per-group": ("llama", {"num_heads": 6, "num_kv_heads": 3, "head_dim": 26}),
    "seven-heads-per-group": ("llama", {"num_heads": 7, "num_kv_heads": 1, "head_dim": 6}),
    "mistral": ("mistral", {}),
    "mistral-window-7": ("mistral", {"sliding_window": 7}),
    "mistral-window-33": ("mistral", {"sliding_window": 33}),
    "qwen3-window-in-some-layers": (
        "qwen3",
        {"sliding_window": 9, "num_layers": 3, "window_layers": (False, True, False)},
    ),
    "qwen2-window-in-some-layers": ("qwen2", {"sliding_window": 20, "window_layers": (True, False)}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied-heads-of-80": ("qwen2", {"tied": True, "head_dim": 80}),
    "qwen3": ("qwen3", {"head_dim": 20}),
    "qwen3-heads-of-128": ("qwen3", {"head_dim": 128, "num_heads": 5, "num_kv_heads": 1}),
}


def assert_agrees(path: Path, ids: np.ndarray) -> None:
    model_file = open_model(path)
    expected = Oracle(model_file).forward(trunk(ids))
    got = native(model_file).forward(trunk(ids))
    assert expected.std() > 0.5
    # A key at the edge of two fp16 values may be rounded to the other one: rare, and then far below 1e-3.
    np.testing.assert_allclose(got, expected, atol=2e-3, rtol=0)
    assert np.sqrt(np.mean((got - expected) ** 2)) < 1e-4 * expected.std()


@pytest.mark.parametrize("name", [name for name in MODELS if "window" not in name and "yarn" not in name])
def test_gguf(tmp_path: Path, name: str) -> None:
    arch, dims = MODELS[name]
    make_gguf(tmp_path / "tiny.gguf", arch, **COMMON | dims)
    assert_agrees(tmp_path / "tiny.gguf", text(70, vocab_size=VOCAB))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "llama-biases"])
def test_directory(tmp_path: Path, name: str) -> None:
    arch, dims = MODELS[name]
    make_hf_dir(tmp_path / "tiny", arch, **COMMON | dims)
    assert_agrees(tmp_path / "tiny", text(70, vocab_size=VOCAB))


def test_directory_with_biases(tmp_path: Path) -> None:
    """In a Llama directory ``attention_bias`` means the output projection too."""
    dims = {"attention_bias": True, "output_bias": True}
    make_hf_dir(tmp_path / "tiny", "llama", **COMMON | dims)
    assert open_model(tmp_path / "tiny").config.output_bias
    assert_agrees(tmp_path / "tiny", text(20, vocab_size=VOCAB))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_16_bit_directories(tmp_path: Path, dtype: str, shards: int) -> None:
    make_hf_dir(tmp_path / "tiny", "qwen3", dtype, shards=shards, **COMMON | {"head_dim": 24})
    assert_agrees(tmp_path / "tiny", text(40, vocab_size=VOCAB))


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_16_bit_gguf(tmp_path: Path, kind: str) -> None:
    make_gguf(tmp_path / "tiny.gguf", "llama", kind, **COMMON)
    assert_agrees(tmp_path / "tiny.gguf", text(40, vocab_size=VOCAB))


def test_directory_and_gguf_of_the_same_weights_agree(tmp_path: Path) -> None:
    """Half-split and interleaved rotations."""
    dims = COMMON | {"rope_scaling": LLAMA3_SCALING}
    make_gguf(tmp_path / "tiny.gguf", "llama", **dims)
    make_hf_dir(tmp_path / "tiny", "llama", **dims)
    ids = text(60, vocab_size=VOCAB)
    logits = [native(open_model(tmp_path / name)).forward(trunk(ids)) for name in ("tiny.gguf", "tiny")]
    np.testing.assert_allclose(*logits, atol=2e-3, rtol=0)


def test_far_positions(tmp_path: Path) -> None:
    """A late start of a text: positions of thousands, where angles in float32 are no longer exact."""
    make_gguf(tmp_path / "tiny.gguf", "qwen2", max_position=40_000, **COMMON)
    model_file = open_model(tmp_path / "tiny.gguf")
    ids = text(12, vocab_size=VOCAB)
    near, far = trunk(ids), trunk(ids)
    far.positions[:] += 32_768
    oracle, model = Oracle(model_file), native(model_file)
    # Attention depends on differences of positions only, so both are the same text.
    np.testing.assert_allclose(model.forward(far), oracle.forward(near), atol=5e-3, rtol=0)
