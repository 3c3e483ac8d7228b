"""What loads, as tables: for the documentation, and for refusing a model before it is fetched."""

from __future__ import annotations

from collections.abc import Mapping

from sonoran.models.architectures import ARCHITECTURES
from sonoran.models.hf_config import ROPE_KINDS
from sonoran.models.tensors import CONVERTED_TYPES, FLOAT_TYPES, KEPT_BITS
from sonoran.models.tokenizer.gguf_source import PIPELINES


def gguf_architectures() -> tuple[str, ...]:
    """Values of ``general.architecture`` that load."""
    return tuple(dict.fromkeys(row.gguf for row in ARCHITECTURES))


def kept_types() -> Mapping[str, int]:
    """Bits of the codes of tensor types that are kept exactly, GGUF's names."""
    return KEPT_BITS


def converted_types() -> Mapping[str, str]:
    """Tensor types that become another one when a model is loaded."""
    return CONVERTED_TYPES


def folder_types() -> tuple[str, ...]:
    """Tensor types of safetensors."""
    return FLOAT_TYPES


def pre_tokenizers() -> list[tuple[str, ...]]:
    """Values of ``tokenizer.ggml.pre`` that load; those that cut words alike stand together."""
    groups: dict[object, list[str]] = {}
    for name, pipeline in PIPELINES.items():
        groups.setdefault(pipeline, []).append(name)
    return [tuple(names) for names in groups.values()]


def rope_kinds() -> tuple[str, ...]:
    """Kinds of RoPE scaling."""
    return ROPE_KINDS
