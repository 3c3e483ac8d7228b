"""The PyTorch backend in fp32, where a violation shows at once: a row alone, and in any company, has the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sonoran.backends.base import Rows
from sonoran.backends.torch import decoder, rows
from sonoran.backends.torch.backend import TorchBackend
from sonoran.backends.torch.graphs import Graphs
from sonoran.models.source import ModelFile, open_model
from tests.backends.native_oracle import text
from tests.backends.native_rows import NUM_BLOCKS, assert_same_bits, one_by_one
from tests.backends.test_native_branches import Tree, fill_trunk
from tests.backends.test_native_rows import STEPS, run_in_pieces
from tests.hf_models import VOCAB, save_model
from tests.tiny_models import make_gguf

MODELS = ("gemma2", "gemma3", "smollm3", "olmo2", "phi3-window", "falcon3", "qwen2", "seven-heads")


def tiny(directory: Any, name: str) -> ModelFile:
    if name in ("qwen2", "seven-heads"):
        dims = {"num_heads": 7, "num_kv_heads": 1, "head_dim": 10} if name == "seven-heads" else {}
        make_gguf(directory / "tiny.gguf", "qwen2", "F32", hidden_size=64, intermediate_size=96, **dims)
        return open_model(directory / "tiny.gguf")
    save_model(directory, name)
    return open_model(directory)


@pytest.fixture(scope="module", autouse=True)
def short_chunks() -> Iterator[None]:
    """Chunks of 16 keys, so that short texts have several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "CHUNK", 16)
        patch.setattr(decoder, "CHUNK", 16)
        yield


@pytest.fixture(scope="module", params=MODELS)
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchBackend:
    model = tiny(tmp_path_factory.mktemp(request.param), request.param)
    opened = TorchBackend(model, num_blocks=NUM_BLOCKS)
    assert opened.exact
    return opened


TEXTS = [text(length, seed, VOCAB - 20) for seed, length in enumerate((45, 33, 17, 5))]


@pytest.fixture(scope="module")
def alone(backend: TorchBackend) -> list[np.ndarray]:
    return [one_by_one(backend, ids) for ids in TEXTS]  # type: ignore[arg-type]


@settings(max_examples=12, deadline=None)
@given(steps=STEPS, seed=st.integers(0, 2**32 - 1))
def test_any_batches(
    backend: TorchBackend, alone: list[np.ndarray], steps: list[list[int]], seed: int
) -> None:
    logits = run_in_pieces(backend, TEXTS, steps, np.random.default_rng(seed))  # type: ignore[arg-type]
    assert logits
    for (i, position), values in logits.items():
        assert_same_bits(values, alone[i][position])


@settings(max_examples=8, deadline=None)
@given(parents=st.lists(st.integers(0, 15), min_size=1, max_size=12), seed=st.integers(0, 2**32 - 1))
def test_branches_are_the_texts_that_they_stand_for(
    backend: TorchBackend, parents: list[int], seed: int
) -> None:
    ids = TEXTS[0]
    tree = Tree.grown(len(ids), parents, seed)
    fill_trunk(backend, ids)  # type: ignore[arg-type]
    nodes = [int(i) for i in np.random.default_rng(seed).permutation(len(parents))]
    got = backend.forward(tree.rows(nodes))
    for node, values in zip(nodes, got, strict=True):
        linear = tree.text(ids, node)
        assert_same_bits(values, one_by_one(backend, linear, len(linear) - 1)[0])  # type: ignore[arg-type]


class Replayed(Graphs):
    """What a graph is to a GPU, without one: a replay runs the pass again over the same tensors."""

    def run(self, rows: decoder.DeviceRows) -> Any:
        return super().run(rows).clone()  # as fetching them from a GPU does

    def capture(self, rows: decoder.DeviceRows) -> tuple[Any, Any]:
        logits = self._decoder.run(rows).clone()
        return SimpleNamespace(replay=lambda: logits.copy_(self._decoder.run(rows))), logits


def test_replayed_passes_have_the_same_bits(
    backend: TorchBackend, alone: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = Replayed(backend._open(), backend._memory.spare)
    monkeypatch.setattr(backend, "_graphs", graphs)
    for seed in range(3):
        logits = run_in_pieces(backend, TEXTS, [[3, 1, 0, 2]] * 5, np.random.default_rng(seed))  # type: ignore[arg-type]
        for (i, position), values in logits.items():
            assert_same_bits(values, alone[i][position])
    assert 1 <= len(graphs._recorded) < 6
    ids = TEXTS[0]
    backend.restrict_output(np.arange(0, backend.config.vocab_size, dtype=np.int32))
    assert not graphs._recorded
    monkeypatch.setattr(backend, "_ids", None)
    assert_same_bits(one_by_one(backend, ids, len(ids) - 1)[0], alone[0][-1])  # type: ignore[arg-type]


def test_a_wrong_slot_changes_logits(backend: TorchBackend) -> None:
    ids = TEXTS[1]
    table = np.arange(NUM_BLOCKS, dtype=np.int32)[None]
    good = Rows.trunk(ids, np.arange(len(ids)), np.zeros(len(ids)), table, 16, np.ones(len(ids)))
    whole = backend.forward(good)
    last = Rows.trunk(ids[-1:], [len(ids) - 1], [0], table, 16, [1])
    assert_same_bits(backend.forward(last)[0], whole[-1])
    other = replace(last, block_tables=np.array([[0, 9, 2]], np.int32))
    assert not np.array_equal(backend.forward(other)[0], whole[-1])
