"""What loads, as tables: for the documentation, and for refusing a model before it is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sonoran.models.gguf_model import ARCHITECTURES
from sonoran.models.hf_config import CLASSES, ROPE_KINDS
from sonoran.models.tensors import CONVERTED_TYPES, FLOAT_TYPES, KEPT_BITS
from sonoran.models.tokenizer.gguf_source import PIPELINES

_MODELS = {
    "llama": "Llama 2 and 3, DeepSeek R1 distills of Llama, Falcon 3, Hermes, SmolLM2, TinyLlama",
    "mistral": "Mistral 7B, Nemo, Small (as GGUF under llama)",
    "qwen2": "Qwen2, Qwen2.5, Qwen2.5-Coder, DeepSeek R1 distills of Qwen",
    "qwen3": "Qwen3 (dense), DeepSeek R1 0528",
}


@dataclass(frozen=True, slots=True)
class Supported:
    """One architecture: its name in GGUF files and its class in folders, None where that does not load."""

    gguf: str | None
    hf_class: str | None
    models: str


def architectures() -> list[Supported]:
    """All architectures that load, in the order of the code's tables."""
    classes = {name: hf_class for hf_class, name in CLASSES.items()}
    names = dict.fromkeys((*ARCHITECTURES, *classes))
    return [
        Supported(name if name in ARCHITECTURES else None, classes.get(name), _MODELS.get(name, name))
        for name in names
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
