"""Precision of a draft: its errors cost acceptance, never a text, so it may be low."""

from __future__ import annotations

from sonoran.backends.native import Quantize
from sonoran.config import DraftQuantize


def draft_precision(quantize: DraftQuantize | None) -> Quantize | None:
    """Return what the backend is told: 4 bits unless asked for otherwise; ``file`` keeps the file's precision."""
    if quantize is None:
        return "int4"
    return None if quantize == "file" else quantize
