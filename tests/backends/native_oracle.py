"""Tiny models opened twice: by the native backend, and by the reference with the native approximations."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from sonoran.backends.base import Rows
from sonoran.backends.native import NativeBackend, packed_format
from sonoran.config import Precision
from sonoran.models.source import ModelFile
from sonoran.models.tensors import TensorInfo, kept_rows
from sonoran.types import FloatArray
from tests.native.activations import GROUP
from tests.native.packing import DENSE, decode
from tests.oracles.torch_backend import TorchBackend

BLOCK_SIZE = 16
BLOCKS = 12
TABLE = np.array([[9, 2, 5, 1, 0, 3]], np.int32)


class Oracle(TorchBackend):
    """The reference on exactly the weights that the native backend holds, with its rounding of activations.

    Products with quantised weights round per 32 inputs, dense ones not at all.
    """

    def __init__(self, model_file: ModelFile, quantize: Precision | None = None) -> None:
        matrices = {name: info for name, info in model_file.tensors.items() if len(info.shape) == 2}
        kinds = {name: packed_format(info, quantize) for name, info in matrices.items()}
        self._groups = {name: None if kind in DENSE else GROUP for name, kind in kinds.items()}
        packed = {name: _packed(info, kinds[name]) for name, info in matrices.items()}
        held = dataclasses.replace(model_file, tensors=dict(model_file.tensors) | packed)
        super().__init__(held, BLOCKS, BLOCK_SIZE, batched=True, fp16_cache=True)

    def forward(self, rows: Rows) -> FloatArray:
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # waking threads for tiny products costs more than it gains
        try:
            return super().forward(rows)
        finally:
            torch.set_num_threads(threads)

    def _linear(self, x: Any, name: str, bias: str | None = None) -> Any:
        self._group = self._groups[name]
        return super()._linear(x, name, bias)


def _packed(info: TensorInfo, kind: str) -> TensorInfo:
    from sonoran import _native

    kept, rows = kept_rows(info)
    matrix = _native.PackedMatrix(kept, kind, *info.shape, rows)
    values = decode(matrix, *info.shape)
    return dataclasses.replace(info, dtype="F32", data=values.reshape(-1).view(np.uint8))


def native(model_file: ModelFile, **options: Any) -> NativeBackend:
    options = {"num_blocks": BLOCKS, "block_size": BLOCK_SIZE, "threads": 1} | options
    return NativeBackend(model_file, **options)


def text(length: int, seed: int = 0, vocab_size: int = 320) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab_size, length).astype(np.int32)


def trunk(ids: np.ndarray, start: int = 0, table: np.ndarray = TABLE) -> Rows:
    """Rows of the tokens from ``start`` on, of one sequence; all want logits."""
    n = len(ids) - start
    return Rows.trunk(
        ids[start:], np.arange(start, len(ids)), np.zeros(n), table, BLOCK_SIZE, np.ones(n, np.int32)
    )
