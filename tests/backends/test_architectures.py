"""Every architecture against transformers in fp32, from a directory and from a GGUF file of the same weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sonoran.models.source import ModelFile, open_model
from tests.backends.native_oracle import Oracle, native, text, trunk
from tests.hf_models import HF_ONLY, MODELS, VOCAB, convert, hf_logits, save_model
from tests.oracles.torch_backend import TorchBackend

pytest.importorskip("torch")
pytest.importorskip("transformers")

LENGTH = 70  # several windows, and beyond the original context of phi4-mini-long


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each model, its directory and its logits of a text, made when first asked for."""
    made: dict[str, tuple[Path, np.ndarray]] = {}

    def get(name: str) -> tuple[Path, np.ndarray]:
        if name not in made:
            directory = tmp_path_factory.mktemp(name)
            model = save_model(directory, name)
            made[name] = directory, hf_logits(model, text(LENGTH, vocab_size=VOCAB))
        return made[name]

    return get


def opened(path: Path) -> ModelFile:
    """The model for texts of LENGTH tokens."""
    model = open_model(path)
    return replace(model, config=model.config.for_context(LENGTH))


def assert_agrees(path: Path, expected: np.ndarray) -> None:
    model, rows = opened(path), trunk(text(LENGTH, vocab_size=VOCAB))
    assert expected.std() > 0.3
    oracle = TorchBackend(model, 12, 16, batched=True)
    np.testing.assert_allclose(oracle.forward(rows), expected, atol=2e-4, rtol=0)
    got, rounded = native(model).forward(rows), Oracle(model).forward(rows)
    # A key at the edge of two fp16 values may be rounded to the other one.
    np.testing.assert_allclose(got, rounded, atol=3e-3, rtol=0)
    assert np.sqrt(np.mean((got - rounded) ** 2)) < 2e-4 * expected.std()
    np.testing.assert_allclose(got, expected, atol=0.03 * expected.std(), rtol=0)


@pytest.mark.parametrize("name", [*MODELS, *HF_ONLY])
def test_directory(saved: Any, name: str) -> None:
    assert_agrees(*saved(name))


IDLE = {
    "norms": "before",
    "activation": "silu",
    "embedding_scale": 1.0,
    "attention_scale": None,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
    "attention_softcap": None,
    "logit_softcap": None,
    "window_rope_theta": None,
    "sliding_windows": (),
    "rotated_layers": (),
    "whole_qk_norm": False,
}


@pytest.mark.parametrize(
    "name", ["gemma3", "gemma2", "granite", "smollm3", "gemma3-other-scale", "phi3-window"]
)
def test_the_text_is_long_enough_for_every_value_to_matter(saved: Any, name: str) -> None:
    directory, expected = saved(name)
    model, rows = opened(directory), trunk(text(LENGTH, vocab_size=VOCAB))
    for field, idle in IDLE.items():
        if getattr(model.config, field) == idle or field == "norms":
            continue
        without = replace(model, config=replace(model.config, **{field: idle}))
        got = TorchBackend(without, 12, 16, batched=True).forward(rows)
        assert np.abs(got - expected).max() > 0.03 * expected.std(), field


@pytest.mark.parametrize("name", MODELS)
def test_gguf(saved: Any, name: str, tmp_path: Path) -> None:
    directory, expected = saved(name)
    convert(directory, tmp_path / "tiny.gguf", MODELS[name][1])
    assert_agrees(tmp_path / "tiny.gguf", expected)
