"""Models and texts for tests of row independence, and the logits that every row must have, to the bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sonoran.backends.base import Rows
from sonoran.backends.native import NativeBackend
from sonoran.models.source import open_model
from tests import hf_models
from tests.backends.native_oracle import native, text
from tests.hf_models import convert, save_model
from tests.native.packing import present_sets
from tests.tiny_models import LLAMA3_SCALING, make_gguf

BLOCK_SIZE = 16
NUM_BLOCKS = 24
MIXED = {
    "default": "Q4_K", "output": "Q6_K", "v": "Q6_K", "layers.0.down": "Q5_K", "layers.1.down": "Q8_0",
    "layers.0.up": "Q4_1", "layers.1.gate": "Q5_0", "layers.1.q": "F16", "layers.0.gate": "Q2_K",
    "layers.1.up": "IQ4_XS", "layers.1.k": "Q3_K", "layers.0.o": "IQ4_NL", "layers.1.o": "MXFP4",
}  # fmt: skip
MODELS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "llama-mixed": ("llama", MIXED, {"tied": False}),
    "mistral-window": ("mistral", "Q4_1", {"hidden_size": 96, "intermediate_size": 160}),
    "qwen2-window-in-upper-layer": ("qwen2", "Q8_0", {"hidden_size": 64, "intermediate_size": 96}),
    "qwen3-dense": ("qwen3", "BF16", {"hidden_size": 40, "intermediate_size": 56, "head_dim": 20}),
    "llama3-seven-heads": (
        "llama", "Q8_0",
        {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "num_heads": 7, "num_kv_heads": 1,
         "rope_scaling": LLAMA3_SCALING},
    ),
}  # fmt: skip

# Made by transformers: softcaps, norms around and behind sublayers, experts, layers without positions.
OTHERS: dict[str, tuple[str, dict[str, int]]] = {
    "gemma2": ("Q8_0", {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}),
    "qwen2-moe": (
        "Q4_0", {"hidden_size": 64, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 96},
    ),
    "qwen3-moe": ("F32", {}),
    "olmo2": ("F32", {}),
    "smollm3": ("Q8_0", {"hidden_size": 64, "intermediate_size": 96}),
}  # fmt: skip
CASES = (*MODELS, *OTHERS)

WINDOWS = {"mistral-window": (11, 11), "qwen2-window-in-upper-layer": (None, 7)}  # GGUF files have none


@dataclass(frozen=True)
class Case:
    """Texts, the logits of each of their rows run alone and in order, and backends that must repeat them."""

    texts: list[np.ndarray]
    alone: list[np.ndarray]  # per text [length, vocab_size]
    backends: list[NativeBackend]  # 1 to 4 threads, every instruction set of the processor
    plain: NativeBackend  # one thread, runs rows alone only

    def expected(self, ids: np.ndarray, start: int) -> np.ndarray:
        """Logits of the tokens from ``start`` on, each in a pass of its own."""
        return one_by_one(self.plain, ids, start)


def make_case(directory: Path, name: str) -> Case:
    if name in OTHERS:
        pytest.importorskip("transformers")
        kind, sizes = OTHERS[name]
        save_model(directory / "tiny", name, **sizes)
        convert(directory / "tiny", directory / "tiny.gguf", hf_models.MODELS[name][1], kind)
    else:
        arch, types, dims = MODELS[name]
        make_gguf(directory / "tiny.gguf", arch, types, **dims)
    model_file = open_model(directory / "tiny.gguf")
    if name in WINDOWS:
        windowed = replace(model_file.config, sliding_windows=WINDOWS[name])
        model_file = replace(model_file, config=windowed)

    def opened(threads: int, instruction_set: str) -> NativeBackend:
        return native(model_file, num_blocks=NUM_BLOCKS, threads=threads, instruction_set=instruction_set)

    backends = [opened(threads, "auto") for threads in (1, 2, 3, 4)]
    backends += [opened(1 + i % 2, name) for i, name in enumerate(present_sets())]
    texts = [text(length, seed) for seed, length in enumerate((45, 33, 17, 5))]
    plain = opened(1, "auto")
    return Case(texts, [one_by_one(plain, ids) for ids in texts], backends, plain)


def one_by_one(backend: NativeBackend, ids: np.ndarray, start: int = 0) -> np.ndarray:
    """Logits of the tokens from ``start`` on, each in a pass of its own; blocks in order."""
    table = np.arange(NUM_BLOCKS, dtype=np.int32)[None]
    return np.concatenate(
        [
            backend.forward(Rows.trunk([ids[i]], [i], [0], table, BLOCK_SIZE, [int(i >= start)]))
            for i in range(len(ids))
        ]
    )


def assert_same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))
