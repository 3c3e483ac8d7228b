"""Precision of a draft: its errors cost acceptance, never a text, so it may be low."""

from __future__ import annotations

from pathlib import Path

from sonoran.backends.native import Quantize
from sonoran.config import DraftQuantize
from sonoran.weights.registry import MODELS


def draft_precision(quantize: DraftQuantize | None, path: Path) -> Quantize | None:
    """Return what the backend is told for a draft's file: what was asked for; ``file`` keeps the file's precision.

    Unless asked: 4 bits, or fewer for known drafts that were measured to be accepted as often.
    """
    if quantize is not None:
        return None if quantize == "file" else quantize
    known = next((entry for entry in MODELS.values() if entry.file == path.name), None)
    return known.draft_quantize if known is not None else "int4"
