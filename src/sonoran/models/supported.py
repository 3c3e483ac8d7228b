"""What loads, as tables: for the documentation, and for refusing a model before it is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sonoran.models.architectures import ARCHITECTURES, BY_GGUF
from sonoran.models.hf_config import ROPE_KINDS
from sonoran.models.tensors import CONVERTED_TYPES, FLOAT_TYPES, KEPT_BITS
from sonoran.models.tokenizer.gguf_source import PIPELINES


@dataclass(frozen=True, slots=True)
class Supported:
    """One architecture: its name in GGUF files and its class in folders, None where that does not load."""

    gguf: str | None
    hf_class: str | None
    models: str


def architectures() -> list[Supported]:
    """All architectures that load, in the order of the code's tables."""
    return [
        Supported(row.gguf if BY_GGUF[row.gguf] is row else None, row.hf_class, row.models)
        for row in ARCHITECTURES
    ]


def gguf_architectures() -> tuple[str, ...]:
    """Values of ``general.architecture`` that load."""
    return tuple(dict.fromkeys(row.gguf for row in architectures() if row.gguf is not None))


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
