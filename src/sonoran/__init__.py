"""Sonoran: fast, lossless text generation with speculative speculative decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sonoran.llm import LLM
    from sonoran.planning.scaling.planning import plan
    from sonoran.sampling.params import SamplingParams


__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__", "plan"]

_HOMES = {
    "LLM": "sonoran.llm",
    "SamplingParams": "sonoran.sampling.params",
    "plan": "sonoran.planning.scaling.planning",
}


def __getattr__(name: str) -> object:
    # Loaded on first use, so that the command line starts quickly.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'sonoran' has no attribute {name!r}")
