"""Which draft is found for a target whose user named none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sonoran.errors import ConfigError
from sonoran.models.families import FAMILIES, SMALLER, Family, family_draft
from sonoran.models.opening import known_draft, open_draft, open_with_tokenizer
from sonoran.models.registry import DEFAULT_DRAFT, DEFAULT_TARGET, MODELS
from tests.tiny_models import make_gguf


def vocabulary(family: Family) -> list[str]:
    tokens = [f"token{i}" for i in range(max(family.tokens) + 1)]
    for i, token in family.tokens.items():
        tokens[i] = token
    return tokens


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_larger_model_of_a_family_gets_its_draft(family: Family) -> None:
    tokens, parameters = vocabulary(family), family.draft_parameters
    for architecture in family.architectures:
        assert family_draft(architecture, tokens, SMALLER * parameters) == family.draft
        assert family_draft(architecture, [*tokens, "<added>"], SMALLER * parameters) == family.draft
        assert family_draft(architecture, tokens, parameters) is None  # the draft itself
    assert family_draft("another", tokens, 10 * parameters) is None
    for i in family.tokens:
        assert family_draft(family.architectures[0], [*tokens[:i], "x", *tokens[i + 1 :]], 1e12) is None
        assert family_draft(family.architectures[0], tokens[:i], 1e12) is None


def test_no_model_is_of_two_families() -> None:
    for family in FAMILIES:
        for architecture in family.architectures:
            found = [other.name for other in FAMILIES if other.has(architecture, vocabulary(family))]
            assert found == [family.name]


def test_without_a_known_family_the_error_says_what_needs_no_draft(tmp_path: Path) -> None:
    make_gguf(tmp_path / "mine.gguf", "qwen2")
    target = open_with_tokenizer(tmp_path / "mine.gguf")
    assert known_draft(target) is None
    with pytest.raises(
        ConfigError, match=r"no draft is known for mine\.gguf \(qwen2, \d+ tokens\): .* use mode ngram"
    ):
        open_draft(target, "auto")
    assert open_draft(target, None) is None


@pytest.mark.real
def test_the_known_models() -> None:
    found = {name: known_draft(open_with_tokenizer(name)) for name in MODELS}
    assert found[DEFAULT_TARGET] == DEFAULT_DRAFT
    assert [name for name, draft in found.items() if draft is not None] == [DEFAULT_TARGET]
