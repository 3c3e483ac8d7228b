"""Weights of a model file on a device, as the decoder multiplies with them.

Query, key and value matrices become one, gate and up too: fewer and larger products. Widths that are not even are
padded with zeros: a processor's vector units treat the last odd elements in another way, and a row could see it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sonoran.backends.torch.devices import import_torch
from sonoran.errors import ModelError
from sonoran.models.config import ModelConfig
from sonoran.models.source import ModelFile
from sonoran.models.tensors import CONVERTED_AT_ONCE, TensorInfo, dequantize

_EVEN = 32


def load_weights(
    model: ModelFile, device: Any, dtype: Any, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Return all tensors by name: those of the file, ``layers.i.qkv`` and ``layers.i.gate_up`` instead of their parts.

    Matrices have ``dtype``, vectors are fp32. Raises ModelError for a model of experts.
    """
    if model.config.experts is not None:
        raise ModelError(f"{model.path}: mixtures of experts do not run through PyTorch here; use device cpu")
    total, done = model.nbytes, 0
    made: dict[str, Any] = {}

    def matrix(name: str) -> Any:
        nonlocal done
        tensor = model.tensors[name]
        loaded = _load_matrix(tensor, device, dtype)
        done += tensor.nbytes
        model.release()
        if progress is not None:
            progress(done, total)
        return loaded

    torch = import_torch()
    for tensor in model.tensors.values():
        if len(tensor.shape) == 1:
            made[tensor.name] = torch.from_numpy(dequantize(tensor)).to(device)
    output = "embed" if model.config.tied_embeddings else "output"
    for name in dict.fromkeys(("embed", output)):
        made[name] = _padded(matrix(name), 0) if name == output else matrix(name)
    for i in range(model.config.num_layers):
        _load_layer(made, f"layers.{i}.", model.config, matrix)
    return made


def _load_layer(made: dict[str, Any], layer: str, config: ModelConfig, matrix: Callable[[str], Any]) -> None:
    torch = import_torch()
    made[layer + "qkv"] = torch.cat([matrix(layer + part) for part in "qkv"])
    biases = [made.pop(layer + part + "_bias", None) for part in "qkv"]
    if config.attention_bias:
        made[layer + "qkv_bias"] = torch.cat(biases)
    made[layer + "o"] = matrix(layer + "o")
    made[layer + "gate_up"] = torch.cat([_padded(matrix(layer + part), 0) for part in ("gate", "up")])
    made[layer + "down"] = _padded(matrix(layer + "down"), 1)


def _load_matrix(tensor: TensorInfo, device: Any, dtype: Any) -> Any:
    """Decode a matrix a piece at a time, so that of the fp32 values only a piece is in memory."""
    torch = import_torch()
    outputs, inputs = tensor.shape
    rows = tensor.data.reshape(outputs, -1)
    loaded = torch.empty((outputs, inputs), dtype=dtype, device=device)
    step = max(1, CONVERTED_AT_ONCE // inputs)
    for begin in range(0, outputs, step):
        data = np.ascontiguousarray(rows[begin : begin + step])
        piece = TensorInfo(tensor.name, tensor.dtype, (len(data), inputs), data.reshape(-1), tensor.source)
        loaded[begin : begin + step] = torch.from_numpy(dequantize(piece))
    return loaded


def _padded(matrix: Any, dim: int) -> Any:
    torch = import_torch()
    missing = -matrix.shape[dim] % _EVEN
    if not missing:
        return matrix
    shape = list(matrix.shape)
    shape[dim] = missing
    return torch.cat([matrix, torch.zeros(shape, dtype=matrix.dtype, device=matrix.device)], dim)
