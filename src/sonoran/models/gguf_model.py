"""From the metadata and tensor names of a GGUF file to a configuration and canonical tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sonoran.errors import ModelError, nearest
from sonoran.models.config import ModelConfig, RopeScaling
from sonoran.models.gguf_reader import GgufMetadata, RawTensor, read_gguf
from sonoran.models.tensors import MATRIX_NAMES, TensorInfo, check_config, check_tensors, dequantize

ARCHITECTURES = ("llama", "qwen2", "qwen3")

TOP_NAMES = {
    "token_embd.weight": "embed",
    "output.weight": "output",
    "output_norm.weight": "final_norm",
    "rope_freqs.weight": "rope_factors",
}
LAYER_TENSORS = {
    "attn_norm.weight": "attn_norm",
    "attn_q.weight": "q",
    "attn_k.weight": "k",
    "attn_v.weight": "v",
    "attn_output.weight": "o",
    "attn_q.bias": "q_bias",
    "attn_k.bias": "k_bias",
    "attn_v.bias": "v_bias",
    "attn_output.bias": "o_bias",
    "attn_q_norm.weight": "q_norm",
    "attn_k_norm.weight": "k_norm",
    "ffn_norm.weight": "ffn_norm",
    "ffn_gate.weight": "gate",
    "ffn_up.weight": "up",
    "ffn_down.weight": "down",
}
# Metadata that changes the arithmetic in ways this decoder does not have, unless it has the harmless value.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "use_parallel_residual": (False,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "attention.scale": (0.0,),
    "attention.causal": (True,),
    "attention.max_alibi_bias": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "rope.scaling.type": ("none",),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scale_linear": (0.0, 1.0),
}


def open_gguf(path: Path) -> tuple[ModelConfig, dict[str, TensorInfo], GgufMetadata]:
    """Read configuration, tensors and metadata of one GGUF file; ModelError when they do not fit together."""
    metadata, raw = read_gguf(path)
    where = str(path)
    fields = _Fields(where, metadata)
    tensors = _canonical(where, raw)
    config = _config(fields, tensors)
    tensors.pop("rope_factors", None)
    check_config(where, config)
    check_tensors(where, config, tensors)
    return config, tensors, metadata


class _Fields:
    """Typed access to the metadata of the file's architecture; errors name the key."""

    def __init__(self, where: str, metadata: GgufMetadata) -> None:
        self.where = where
        self.metadata = metadata
        self.architecture = str(metadata.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            hint = nearest(self.architecture, ARCHITECTURES)
            raise ModelError(f"{where}: architecture {self.architecture!r} is not supported{hint}")

    def get(self, key: str) -> Any:
        return self.metadata.get(f"{self.architecture}.{key}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        if isinstance(value, np.ndarray) and value.size:
            if (value != value[0]).any():
                raise ModelError(f"{self.where}: {self.architecture}.{key} differs between layers")
            value = value[0].item()
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(
                f"{self.where}: metadata {self.architecture}.{key} is {value!r}, expected a number"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ModelError(
                f"{self.where}: metadata {self.architecture}.{key} is {value!r}, expected a number"
            )
        return float(value)


def _canonical(where: str, raw: list[RawTensor]) -> dict[str, TensorInfo]:
    tensors = {}
    for tensor in raw:
        name = TOP_NAMES.get(tensor.name)
        if name is None:
            match = re.fullmatch(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)", tensor.name)
            last = LAYER_TENSORS.get(match[2]) if match else None
            if match is None or last is None:
                raise ModelError(
                    f"{where}: tensor {tensor.name} is not one that the supported architectures have"
                )
            name = f"layers.{match[1]}.{last}"
        shape = tensor.shape
        while (
            len(shape) > 1
            and shape[0] == 1
            and name.rpartition(".")[2] not in ("embed", "output", *MATRIX_NAMES)
        ):
            shape = shape[1:]
        tensors[name] = TensorInfo(name, tensor.dtype, shape, tensor.data, tensor.name)
    return tensors


def _config(fields: _Fields, tensors: Mapping[str, TensorInfo]) -> ModelConfig:
    where, architecture = fields.where, fields.architecture
    _refuse_unsupported(fields)
    for name in ("embed", "final_norm"):
        if name not in tensors:
            raise ModelError(f"{where}: tensor {name} is missing; the file is incomplete")
    heads = fields.integer("attention.head_count")
    hidden = fields.integer("embedding_length")
    if heads < 1:
        raise ModelError(f"{where}: {architecture}.attention.head_count is {heads}")
    head_dim = fields.integer("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(key, head_dim) != head_dim:
            raise ModelError(
                f"{where}: {architecture}.{key} is {fields.integer(key)}, but heads have {head_dim} "
                "elements; only whole heads of equal size are supported"
            )
    vocab_size = tensors["embed"].shape[0]
    _check_vocabulary(fields, vocab_size)
    window = fields.integer("attention.sliding_window", 0)
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=fields.integer("block_count"),
        num_heads=heads,
        num_kv_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position=fields.integer("context_length"),
        rope_theta=fields.number("rope.freq_base", 10000.0),
        norm_epsilon=fields.number("attention.layer_norm_rms_epsilon"),
        rope_interleaved=architecture == "llama",
        rope_scaling=_rope_scaling(where, tensors),
        attention_bias=architecture == "qwen2" or "layers.0.q_bias" in tensors,
        output_bias="layers.0.o_bias" in tensors,
        qk_norm=architecture == "qwen3",
        tied_embeddings="output" not in tensors,
        sliding_window=window or None,
    )


def _refuse_unsupported(fields: _Fields) -> None:
    parts = fields.metadata.get("split.count", 0)
    if parts not in (0, 1):
        raise ModelError(f"{fields.where}: one of {parts} parts of a split GGUF file; merge them first")
    for key, harmless in HARMLESS.items():
        value = fields.get(key)
        if value is not None and (isinstance(value, np.ndarray) or value not in harmless):
            raise ModelError(f"{fields.where}: {fields.architecture}.{key} = {value!r} is not supported")


def _check_vocabulary(fields: _Fields, vocab_size: int) -> None:
    declared = fields.integer("vocab_size", vocab_size)
    if declared != vocab_size:
        raise ModelError(
            f"{fields.where}: {fields.architecture}.vocab_size is {declared}, "
            f"but token_embd.weight has {vocab_size} rows"
        )
    tokens = fields.metadata.array_length("tokenizer.ggml.tokens")
    if tokens > vocab_size:
        raise ModelError(f"{fields.where}: {tokens} tokens, but token_embd.weight has only {vocab_size} rows")


def _rope_scaling(where: str, tensors: Mapping[str, TensorInfo]) -> RopeScaling | None:
    tensor = tensors.get("rope_factors")
    if tensor is None:
        return None
    if len(tensor.shape) != 1:
        raise ModelError(f"{where}: tensor {tensor.source} has shape {tensor.shape}, expected a vector")
    return RopeScaling(tuple(dequantize(tensor).tolist()))
