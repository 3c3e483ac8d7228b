"""The draft's vocabulary grows with the texts, in units of 16 ids, up to its limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.backends.vocabulary import DraftVocabulary
from sonoran.errors import ConfigError


def test_starts_with_low_ids_and_special_tokens() -> None:
    vocabulary = DraftVocabulary(1000, 40, special=[990, 5, 2000])
    assert vocabulary.ids().tolist() == [0, 16, 32, 976]
    assert vocabulary.width == 992


def test_adds_what_a_text_contains_once() -> None:
    vocabulary = DraftVocabulary(1000, 16)
    assert vocabulary.add([3, 100, 101, 999, -1, 1000])
    assert vocabulary.ids().tolist() == [0, 96, 992]
    assert vocabulary.width == 1000
    assert not vocabulary.add([96, 111, 992])


@given(st.lists(st.lists(st.integers(0, 4095), max_size=30)), st.integers(0, 20))
def test_the_limit_holds_and_nothing_is_lost(texts: list[list[int]], limit: int) -> None:
    vocabulary = DraftVocabulary(4096, 64, limit=limit)
    seen = set(vocabulary.ids().tolist())
    for text in texts:
        grew = vocabulary.add(text)
        now = set(vocabulary.ids().tolist())
        assert seen <= now
        assert grew == (now != seen)
        assert len(now) <= 4 + limit
        if len(now) < 4 + limit:
            assert {token // 16 * 16 for token in text} <= now
        seen = now


@pytest.mark.parametrize(("size", "first"), [(0, 1), (10, 0)])
def test_empty_vocabularies_are_refused(size: int, first: int) -> None:
    with pytest.raises(ConfigError, match="at least one token"):
        DraftVocabulary(size, first)
