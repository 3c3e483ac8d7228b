"""Precision of a draft: asked for, known, or the default."""

from __future__ import annotations

from pathlib import Path

import pytest

from sonoran.config import DraftQuantize
from sonoran.models.registry import DEFAULT_DRAFT, MODELS, draft_precision


@pytest.mark.parametrize(
    ("asked", "name", "told"),
    [
        (None, "other.gguf", "int4"),
        (None, MODELS[DEFAULT_DRAFT].file, "int3"),
        ("file", MODELS[DEFAULT_DRAFT].file, None),
        ("int8", MODELS[DEFAULT_DRAFT].file, "int8"),
        ("int3", "other.gguf", "int3"),
    ],
)
def test_precision(asked: DraftQuantize | None, name: str, told: str | None) -> None:
    assert draft_precision(asked, Path("models") / name) == told
