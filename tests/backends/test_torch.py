"""The PyTorch backend against the oracle on every architecture; what it refuses; what it keeps from its logits."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from sonoran.backends.load import check_kv_memory, load_backend
from sonoran.backends.torch import backend as torch_module
from sonoran.backends.torch.backend import TorchBackend
from sonoran.errors import ConfigError, ModelError, NumericsError
from sonoran.models.opening import open_with_tokenizer
from sonoran.models.source import ModelFile, open_model
from tests.backends.native_oracle import TABLE, native, text, trunk
from tests.backends.test_architectures import opened
from tests.backends.test_native_errors import (
    EDITS,
    MALFORMED,
    Edits,
    assert_runs_exactly_what_keeps_the_contract,
    broken,
    good,
)
from tests.hf_models import HF_ONLY, MODELS, VOCAB, convert, save_model
from tests.oracles import torch_backend as oracle
from tests.tiny_models import make_gguf

NAMES = [name for name in (*MODELS, *HF_ONLY) if "moe" not in name]
LENGTH = 150  # beyond a chunk of 128 keys


@pytest.mark.parametrize("name", NAMES)
def test_every_architecture(name: str, tmp_path: Path) -> None:
    save_model(tmp_path, name)
    model, rows = opened(tmp_path), trunk(text(LENGTH, vocab_size=VOCAB), table=np.arange(10)[None])
    expected = oracle.TorchBackend(model, 12, 16, batched=True, fp16_cache=True).forward(rows)
    got = TorchBackend(model, num_blocks=12).forward(rows)
    assert expected.std() > 0.3
    np.testing.assert_allclose(got, expected, atol=4e-3, rtol=0)  # keys at the edge of two fp16 values
    assert np.sqrt(np.mean((got - expected) ** 2)) < 3e-4 * expected.std()


@pytest.mark.parametrize("kind", ["F16", "Q4_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4"])
def test_every_weight_of_a_quantised_file_is_exact(kind: str, tmp_path: Path) -> None:
    make_gguf(tmp_path / "tiny.gguf", "qwen2", kind, hidden_size=256, intermediate_size=256, tied=False)
    model = open_model(tmp_path / "tiny.gguf")
    rows = trunk(text(30))
    expected = oracle.TorchBackend(model, 12, 16, batched=True, fp16_cache=True).forward(rows)
    np.testing.assert_allclose(TorchBackend(model, num_blocks=12).forward(rows), expected, atol=5e-3, rtol=0)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    path = tmp_path_factory.mktemp("torch") / "tiny.gguf"
    make_gguf(path, "llama", hidden_size=32, intermediate_size=48, head_dim=8)
    return open_model(path)


@pytest.fixture(scope="module")
def small(model_file: ModelFile) -> TorchBackend:
    return TorchBackend(model_file, num_blocks=3)


def test_bf16_is_near(model_file: ModelFile) -> None:
    rows = trunk(text(30))
    exact = TorchBackend(model_file, num_blocks=12).forward(rows)
    half = TorchBackend(model_file, num_blocks=12, quantize="bf16")
    assert half.facts.weight_bytes < 0.6 * TorchBackend(model_file, num_blocks=1).facts.weight_bytes
    error = np.sqrt(np.mean((half.forward(rows) - exact) ** 2)) / exact.std()
    assert 1e-4 < error < 0.05


def test_it_is_near_the_native_backend(model_file: ModelFile) -> None:
    rows = trunk(text(40))
    ours = TorchBackend(model_file, num_blocks=12).forward(rows)
    np.testing.assert_allclose(ours, native(model_file).forward(rows), atol=5e-3, rtol=0)


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_rows_are_refused_as_elsewhere(small: TorchBackend, case: str) -> None:
    changes, message = MALFORMED[case]
    with pytest.raises(ConfigError, match=message):
        small.forward(dataclasses.replace(good(), **changes))


@settings(max_examples=150, deadline=None)
@given(edits=EDITS)
def test_exactly_the_rows_that_keep_the_contract_run(small: TorchBackend, edits: Edits) -> None:
    assert_runs_exactly_what_keeps_the_contract(small, edits)


def test_rows_that_want_nothing_write_all_the_same(model_file: ModelFile) -> None:
    ids = text(20)
    table = TABLE[:, :2]
    expected = TorchBackend(model_file, num_blocks=12).forward(trunk(ids, table=table))[-1]
    silent = TorchBackend(model_file, num_blocks=12)
    first = trunk(ids[:19], table=table)
    assert silent.forward(dataclasses.replace(first, wants_logits=np.zeros(19, np.int32))).shape == (0, 320)
    np.testing.assert_array_equal(silent.forward(trunk(ids, 19, table))[0], expected)
    assert silent.forward(trunk(ids, 20)).shape == (0, 320)


def test_output_is_restricted_to_the_units_of_some_tokens(model_file: ModelFile) -> None:
    model, rows = TorchBackend(model_file, num_blocks=12), trunk(text(12))
    whole = model.forward(rows)
    model.restrict_output(np.array([3, 100], np.int32))
    some = model.forward(rows)
    wanted = np.r_[0:16, 96:112]
    np.testing.assert_allclose(some[:, wanted], whole[:, wanted], atol=1e-4, rtol=0)
    assert np.isneginf(np.delete(some, wanted, axis=1)).all()
    model.restrict_output(np.arange(320, dtype=np.int32))
    np.testing.assert_array_equal(model.forward(rows), whole)
    for ids in ([], [-1], [320]):
        with pytest.raises(ConfigError, match=r"token ids must lie in 0..319 and not be empty"):
            model.restrict_output(np.array(ids))


@pytest.mark.parametrize("restricted", [False, True])
def test_only_the_largest_logits_leave_the_device(model_file: ModelFile, restricted: bool) -> None:
    rows = trunk(text(12))
    model, whole = (TorchBackend(model_file, num_blocks=12, keep=keep) for keep in (5, None))
    if restricted:
        for one in (model, whole):
            one.restrict_output(np.array([17, 33, 310]))
    logits, few = whole.forward(rows), model.forward(rows)
    kept = np.isfinite(few)
    np.testing.assert_array_equal(kept.sum(1), np.full(12, 5))
    np.testing.assert_array_equal(few[kept], logits[kept])
    assert (np.where(kept, few, np.inf).min(1) >= np.where(kept, -np.inf, logits).max(1)).all()


def test_a_copied_block_serves_another_sequence(model_file: ModelFile) -> None:
    ids, model = text(16), TorchBackend(model_file, num_blocks=12)
    expected = model.forward(trunk(ids))[-1]
    model.copy_block(9, 4)
    np.testing.assert_array_equal(model.forward(trunk(ids, 15, np.array([[4]], np.int32)))[0], expected)
    with pytest.raises(ConfigError, match="block 12 is outside the KV memory of 12 blocks"):
        model.copy_block(12, 0)


@pytest.mark.parametrize("name", ["layers.0.q", "layers.1.down", "output", "final_norm"])
def test_weights_that_are_not_finite_are_an_error(model_file: ModelFile, name: str) -> None:
    model = TorchBackend(broken(model_file, name, np.nan), num_blocks=12)
    with pytest.raises(NumericsError, match=r"row 0 \(position 0\) .* not finite; its weights are likely"):
        model.forward(trunk(text(4)))


def test_a_device_that_cannot_keep_the_rule_says_so(
    model_file: ModelFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = torch.nn.functional.linear

    def tilted(x: Any, weight: Any) -> Any:
        return plain(x, weight) + torch.arange(len(x))[:, None] * 1e-6

    monkeypatch.setattr(torch.nn.functional, "linear", tilted)
    assert not TorchBackend(model_file, num_blocks=12).exact
    assert "texts of AR, SD and SSD may differ" in caplog.text


def test_threads_of_others_are_left_alone(model_file: ModelFile) -> None:
    before = torch.get_num_threads()
    model = TorchBackend(model_file, num_blocks=12, threads=before + 1)
    model.forward(trunk(text(4)))
    assert (torch.get_num_threads(), model.facts.threads) == (before, before + 1)


def test_close_frees_and_may_be_called_twice(model_file: ModelFile) -> None:
    model = TorchBackend(model_file, num_blocks=12)
    model.close()
    model.close()
    with pytest.raises(ConfigError, match="closed"):
        model.forward(trunk(text(2)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": 0}, "num_blocks must be at least 1, got 0"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"quantize": "int8"}, "quantize 'int8' is of device cpu; through PyTorch weights are bf16"),
    ],
)
def test_impossible_options_are_refused(model_file: ModelFile, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TorchBackend(model_file, **{"num_blocks": 3, **options})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there(model_file: ModelFile, device: str) -> None:
    with pytest.raises(ConfigError, match=rf"device '{device}' is not there: PyTorch .* sees 0 CUDA devices"):
        TorchBackend(model_file, num_blocks=3, device=device)


def test_without_pytorch_the_error_says_what_to_install(
    model_file: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"pip install 'sonoran\[torch\]', or use device cpu"):
        TorchBackend(model_file, num_blocks=3)


def test_experts_are_refused(tmp_path: Path) -> None:
    save_model(tmp_path / "tiny", "qwen3-moe")
    convert(tmp_path / "tiny", tmp_path / "tiny.gguf", "qwen3moe")
    with pytest.raises(ModelError, match="mixtures of experts do not run through PyTorch here; use device"):
        TorchBackend(open_model(tmp_path / "tiny.gguf"), num_blocks=3)


def test_the_factory_makes_it_by_device(tmp_path: Path) -> None:
    make_gguf(tmp_path / "tiny.gguf", "qwen2", "Q8_0")
    model = open_with_tokenizer(tmp_path / "tiny.gguf")
    target = load_backend("target", model, num_blocks=4, device="torch:cpu", quantize="bf16")
    draft = load_backend("draft", model, num_blocks=4, device="torch:cpu", draft_vocab=64)
    assert isinstance(target.backend, TorchBackend)
    assert target.backend.facts.device == "torch:cpu"
    assert target.backend.facts.kernels.endswith("bfloat16")
    assert draft.vocabulary is not None
    assert np.isneginf(draft.backend.forward(trunk(text(4), table=TABLE % 4))).any()
    assert load_backend("draft", model, num_blocks=4, device="torch:cpu").vocabulary is None
    with pytest.raises(ConfigError, match="no backend runs on device 'tpu'; did you mean 'cpu'"):
        load_backend("target", model, num_blocks=4, device="tpu")
    with pytest.raises(ConfigError, match="this machine has"):
        check_kv_memory(model.file.config, 2**24, 4096, "torch:cpu")
    per_block = torch_module.kv_bytes_per_block(model.file.config, 16)
    assert target.backend.facts.kv_bytes == 4 * per_block
