"""The PyTorch oracle against Hugging Face transformers, and against itself in any split of a text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sonoran.backends.base import Rows
from sonoran.errors import ConfigError, NumericsError
from sonoran.models.source import open_model
from tests.oracles.torch_backend import TorchBackend
from tests.tiny_models import LLAMA3_SCALING, make_gguf, make_hf_dir

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

BLOCK_SIZE = 4
TABLE = np.array([[9, 2, 5, 1, 0, 3, 11, 7]], np.int32)
COMMON: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1}),
    "llama-head-size-10": ("Llama", {"head_dim": 10}),
    "llama-wide-heads": ("Llama", {"head_dim": 26, "num_attention_heads": 6, "num_key_value_heads": 3}),
    "llama-all-biases": ("Llama", {"attention_bias": True}),
    "llama3-rope": ("Llama", {"rope_parameters": LLAMA3}),
    "yarn-rope": (
        "Qwen3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 500.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "linear-rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}},
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 7}),
    "qwen2-window-in-upper-layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1, "num_hidden_layers": 3},
    ),
    "qwen3-window-in-some-layers": (
        "Qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 6,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 20}),
}


def save_model(directory: Path, name: str) -> Any:
    """Make the model with random weights everywhere (norms and biases too), save it, return it."""
    family, changes = MODELS[name]
    torch.manual_seed(len(name))
    config = getattr(transformers, f"{family}Config")(**COMMON | changes)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(directory, safe_serialization=True)
    return model


def hf_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(ids[None].astype(np.int64))).logits[0].numpy()


def text(length: int, seed: int = 0, vocab_size: int = 97) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab_size, length).astype(np.int32)


def trunk(ids: np.ndarray, start: int = 0, wants: int = 1) -> Rows:
    """Rows of the last ``len(ids) - start`` tokens of one sequence."""
    n = len(ids) - start
    positions = np.arange(start, len(ids))
    return Rows.trunk(ids[start:], positions, np.zeros(n), TABLE, BLOCK_SIZE, np.full(n, wants))


def backend(directory: Path, **options: Any) -> TorchBackend:
    return TorchBackend(open_model(directory), 12, BLOCK_SIZE, **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    result = {}
    for name in MODELS:
        directory = tmp_path_factory.mktemp(name)
        result[name] = (directory, save_model(directory, name))
    return result


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(saved: Any, name: str, batched: bool) -> None:
    directory, model = saved[name]
    ids = text(30)
    logits = backend(directory, batched=batched).forward(trunk(ids))
    expected = hf_logits(model, ids)
    assert expected.std() > 0.3
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_gguf_and_directory_of_the_same_weights_agree(tmp_path: Path, arch: str) -> None:
    dims: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "rope_scaling": None}
    if arch == "llama":
        dims["rope_scaling"] = LLAMA3_SCALING
    make_gguf(tmp_path / "tiny.gguf", arch, **dims)
    make_hf_dir(tmp_path / "tiny", arch, **dims)
    ids = text(30, vocab_size=320)
    from_gguf = TorchBackend(open_model(tmp_path / "tiny.gguf"), 12, BLOCK_SIZE)
    from_directory = backend(tmp_path / "tiny")
    assert from_gguf.config.rope_interleaved == (arch == "llama")
    assert not from_directory.config.rope_interleaved
    got = from_gguf.forward(trunk(ids))
    np.testing.assert_allclose(got, from_directory.forward(trunk(ids)), atol=1e-4, rtol=0)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "tiny").eval()
    np.testing.assert_allclose(got, hf_logits(model, ids), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["llama3-rope", "mistral-window", "qwen3"])
def test_any_split_into_passes_gives_the_same_bits(saved: Any, name: str) -> None:
    ids = text(26)
    whole = backend(saved[name][0]).forward(trunk(ids))
    pieces = backend(saved[name][0])
    ends = [1, 2, 3, 9, 10, 17, 26]
    starts = [0, *ends[:-1]]
    parts = [pieces.forward(trunk(ids[:end], start)) for start, end in zip(starts, ends, strict=True)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_only_wanted_rows_return_logits_in_row_order(saved: Any) -> None:
    ids = text(12)
    model = backend(saved["llama"][0])
    whole = model.forward(trunk(ids))
    wants = np.array([0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1], np.int32)
    some = model.forward(dataclasses.replace(trunk(ids), wants_logits=wants))
    np.testing.assert_array_equal(some, whole[wants == 1])
    assert model.forward(trunk(ids, wants=0)).shape == (0, 97)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("name", ["llama", "mistral-window", "qwen2"])
def test_branches_are_the_linear_sequences_they_stand_for(saved: Any, name: str, batched: bool) -> None:
    """Three branches leave the trunk at different lengths and grow a token per pass, in scattered slots."""
    ids = text(18)
    forks = [18, 15, 11]
    tails = [text(3, seed=1 + i) for i in range(3)]
    free = np.array([43, 17, 40, 19, 41, 42, 18, 35, 16], np.int32).reshape(3, 3)
    table = TABLE[:, :5]
    assert not set((free // BLOCK_SIZE).flat) & set(table.flat)

    model = backend(saved[name][0], batched=batched)
    model.forward(trunk(ids, wants=0))
    got = []
    for depth in range(3):
        extra = free[:, : depth + 1]
        rows = Rows(
            tokens=np.array([tail[depth] for tail in tails], np.int32),
            positions=np.array(forks, np.int32) + depth,
            slots=extra[:, -1].copy(),
            sequences=np.zeros(3, np.int32),
            trunk_lengths=np.array(forks, np.int32),
            wants_logits=np.ones(3, np.int32),
            block_tables=table,
            extra_offsets=np.arange(4, dtype=np.int32) * (depth + 1),
            extra_slots=extra.reshape(-1),
        )
        got.append(model.forward(rows))
    for i, fork in enumerate(forks):
        linear = backend(saved[name][0], batched=batched)
        expected = linear.forward(trunk(np.concatenate([ids[:fork], tails[i]])))[-3:]
        branch = np.stack([got[depth][i] for depth in range(3)])
        if batched:
            np.testing.assert_allclose(branch, expected, atol=1e-5, rtol=0)
        else:
            np.testing.assert_array_equal(branch, expected)


def test_sequences_in_one_pass_do_not_see_each_other(saved: Any) -> None:
    texts = [text(7, 3), text(10, 4), text(3, 5)]
    tables = np.array([[4, 1, -1], [0, 8, 6], [10, -1, -1]], np.int32)
    order = np.random.default_rng(0).permutation(20)
    positions = np.concatenate([np.arange(len(t)) for t in texts])[order]
    sequences = np.repeat([0, 1, 2], [7, 10, 3])[order]
    tokens = np.concatenate(texts)[order]
    model = backend(saved["qwen2"][0])
    logits = model.forward(Rows.trunk(tokens, positions, sequences, tables, BLOCK_SIZE, np.ones(20)))
    for i, ids in enumerate(texts):
        alone = backend(saved["qwen2"][0]).forward(trunk(ids))
        mine = sequences == i
        np.testing.assert_array_equal(logits[mine][np.argsort(positions[mine])], alone)


def test_a_copied_block_serves_another_sequence(saved: Any) -> None:
    ids = text(8)
    model = backend(saved["llama"][0])
    expected = model.forward(trunk(ids))[-1:]
    model.copy_block(int(TABLE[0, 0]), 8)
    model.copy_block(int(TABLE[0, 1]), 6)
    rows = Rows.trunk(ids[-1:], [7], [0], [[8, 6]], BLOCK_SIZE, [1])
    np.testing.assert_array_equal(model.forward(rows), expected)
    with pytest.raises(ConfigError, match="block 12 is outside 0 to 11"):
        model.copy_block(12, 0)


def test_fp16_cache_changes_logits_a_little(saved: Any) -> None:
    ids = text(20)
    exact = backend(saved["llama"][0]).forward(trunk(ids))
    rounded = backend(saved["llama"][0], fp16_cache=True).forward(trunk(ids))
    difference = np.abs(rounded - exact).max()
    assert 0 < difference < 2e-2


def test_rounded_activations_are_near_and_finer_groups_nearer(saved: Any) -> None:
    ids = text(20)
    exact = backend(saved["llama"][0]).forward(trunk(ids))

    def error(group: int) -> float:
        rounded = backend(saved["llama"][0], activation_group=group).forward(trunk(ids))
        return float(np.sqrt(np.mean((rounded - exact) ** 2)) / exact.std())

    coarse, fine = error(48), error(8)
    assert 1e-4 < fine < coarse < 0.05


def malformed() -> dict[str, tuple[dict[str, Any], str]]:
    good = trunk(text(3))
    return {
        "token": ({"tokens": np.array([1, 97, 2], np.int32)}, "token 97 at index 1 is outside 0 to 96"),
        "slot": ({"slots": np.array([36, 37, 48], np.int32)}, "slot 48 at index 2 is outside 0 to 47"),
        "shared slot": (
            {"slots": np.array([36, 37, 37], np.int32)},
            "slot 37 is written by more than one row",
        ),
        "own slot": ({"slots": np.array([36, 37, 39], np.int32)}, "row 2 writes slot 39, .* it reads is 38"),
        "sequence": ({"sequences": np.array([0, 1, 0], np.int32)}, "sequence 1 at index 1"),
        "length": ({"positions": good.positions[:2]}, r"positions has shape \(2,\)"),
        "unmapped": (
            {"block_tables": np.full((1, 1), -1, np.int32)},
            "row 0 sees 1 .* block 0 .* not mapped",
        ),
        "trunk": ({"trunk_lengths": np.array([1, 2, 33], np.int32)}, "trunk length 33 at index 2"),
        "offsets": (
            {"extra_offsets": np.array([0, 0, 0, 1], np.int32)},
            "extra_offsets must rise from 0 to 0",
        ),
    }


@pytest.mark.parametrize("case", malformed())
def test_malformed_rows_are_refused_by_name_and_value(saved: Any, case: str) -> None:
    changes, message = malformed()[case]
    with pytest.raises(ConfigError, match=message):
        backend(saved["llama"][0]).forward(dataclasses.replace(trunk(text(3)), **changes))


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ((0, 4), {}, "num_blocks must be at least 1, got 0"),
        ((2, -1), {}, "block_size must be at least 1, got -1"),
        ((2, 4), {"activation_group": 0}, "activation_group must be at least 1, got 0"),
    ],
)
def test_impossible_sizes_are_refused(saved: Any, sizes: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TorchBackend(open_model(saved["llama"][0]), *sizes, **options)


def test_logits_that_are_not_finite_are_reported(saved: Any) -> None:
    model = backend(saved["llama"][0])
    model._weights["embed"][5] = float("nan")
    ids = np.array([1, 2, 5], np.int32)
    with pytest.raises(NumericsError, match=r"row 2 \(position 2\)"):
        model.forward(trunk(ids))


def test_close_frees_and_may_be_called_twice(saved: Any) -> None:
    model = backend(saved["llama"][0])
    model.close()
    model.close()
    with pytest.raises(ConfigError, match="closed"):
        model.forward(trunk(text(2)))
