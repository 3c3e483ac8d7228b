"""The page about models says what the code's tables say."""

from __future__ import annotations

from pathlib import Path

from sonoran.cli.models_page import page
from sonoran.models.architectures import ARCHITECTURES
from sonoran.models.supported import gguf_architectures, pre_tokenizers
from sonoran.models.tokenizer.gguf_source import PIPELINES

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_page_is_as_written_by_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m sonoran.cli.models_page > docs/models.md"


def test_nothing_that_loads_is_missing() -> None:
    text = page()
    for name in (*PIPELINES, *gguf_architectures()):
        assert f"`{name}`" in text
    for row in ARCHITECTURES:
        assert row.models in text and all(f"`{name}`" in text for name in (row.hf_class, *row.wholes))
    assert sorted(name for names in pre_tokenizers() for name in names) == sorted(PIPELINES)
