"""Every architecture against transformers in fp32, from a directory and from a GGUF file of the same weights."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sonoran.errors import ModelError
from sonoran.models.hf_config import read_hf_config
from sonoran.models.source import ModelFile, open_model
from tests.backends.native_oracle import Oracle, native, text, trunk
from tests.hf_models import (
    HF_ONLY,
    MODELS,
    VOCAB,
    WHOLES,
    convert,
    hf_logits,
    save_model,
    save_whole,
)
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
}


@pytest.mark.parametrize(
    "name", ["gemma3", "gemma2", "granite", "smollm3", "olmo3", "gemma3-other-scale", "phi3-window"]
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


@pytest.mark.parametrize("name", WHOLES)
def test_the_text_part_of_a_model_with_images(name: str, tmp_path: Path) -> None:
    whole = save_whole(tmp_path, name)
    expected = hf_logits(whole, text(LENGTH, vocab_size=VOCAB))
    names = load_file(tmp_path / "model.safetensors").keys()
    assert any("vision_tower" in tensor for tensor in names)
    assert_agrees(tmp_path, expected)

    # The names that transformers gave such tensors before version 4.52, and files of today have still.
    config = json.loads((tmp_path / "config.json").read_text())
    moved = {
        re.sub(r"^(language_model\.)model\.|^model\.(language_model\.)", r"model.\1\2", tensor): value
        for tensor, value in load_file(tmp_path / "model.safetensors").items()
    }
    save_file(moved, tmp_path / "model.safetensors")
    assert_agrees(tmp_path, expected)

    del config["text_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="text_config is missing, expected an object"):
        open_model(tmp_path)


def test_a_text_part_may_leave_out_what_transformers_knows(tmp_path: Path) -> None:
    from transformers import Gemma3Config

    part = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    scaling = {"factor": 8.0, "rope_type": "linear"}
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {"model_type": "gemma3_text", "rope_scaling": scaling, **part},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    got, known = read_hf_config(tmp_path / "config.json"), Gemma3Config(text_config=part).text_config
    assert (got.num_heads, got.num_kv_heads, got.head_dim) == (8, 4, 256)
    assert got.vocab_size == known.vocab_size and got.max_position == known.max_position_embeddings
    assert (got.rope_theta, got.window_rope_theta) == (1e6, 1e4)
    assert got.rope_scaling is not None and set(got.rope_scaling.factors) == {8.0}
    assert got.sliding_windows[:7] == (1024,) * 5 + (None, 1024) and got.tied_embeddings
