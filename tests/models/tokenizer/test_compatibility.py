"""Which pairs of vocabularies may share token ids, and what a refusal says."""

from __future__ import annotations

from typing import Any

import pytest

from sonoran.errors import CompatibilityError
from sonoran.models.tokenizer.compatibility import TokenDifference, compare, require_compatible
from sonoran.models.tokenizer.tokenizer import Tokenizer
from tests.models.tokenizer.vocabularies import byte_level, sentencepiece
from tests.tiny_tokenizer import tiny_tokenizer

TINY = tiny_tokenizer()
SIZE = len(TINY.tokens)
TARGET = Tokenizer.from_gguf(byte_level(padding=40))


def changed(**tokens: str) -> Tokenizer:
    """The tiny vocabulary with unmergeable tokens renamed: ``i300="x"``."""
    strings = list(TINY.tokens)
    for key, token in tokens.items():
        strings[int(key[1:])] = token
    return Tokenizer.from_gguf(byte_level(tokens=strings))


def test_padding_and_source_play_no_part() -> None:
    draft = Tokenizer.from_gguf(byte_level(padding=7))
    report = require_compatible(TARGET, draft)
    assert report.compatible
    assert (report.target_vocab_size, report.draft_vocab_size) == (SIZE, SIZE)
    assert str(report) == f"compatible: the same {SIZE} tokens and special tokens"
    assert TARGET.fingerprint() == draft.fingerprint()


def test_equal_sizes_do_not_make_a_pair_and_the_first_differences_are_named() -> None:
    names = {f"i{SIZE - 1 - i}": f"<|other{i}|>" for i in range(3)}
    draft = changed(**names)
    assert draft.vocab_size == TARGET.vocab_size
    report = compare(TARGET, draft)
    assert not report.compatible
    assert report.num_differences == 3
    assert report.differences[0] == TokenDifference(SIZE - 3, "<|endoftext|>", "<|other2|>")
    with pytest.raises(
        CompatibilityError, match=rf"id {SIZE - 3} is '<\|endoftext\|>' in the target and '<\|other2"
    ):
        require_compatible(TARGET, draft)


def test_a_missing_token_is_a_difference_even_where_padding_covers_it() -> None:
    fewer = list(TINY.tokens[:-1])
    types = [1] * (SIZE - 3) + [3, 3]
    draft = Tokenizer.from_gguf(byte_level(tokens=fewer, token_type=types, eos_token_id=SIZE - 2))
    for target, other, expected in (
        (TARGET, draft, TokenDifference(SIZE - 1, "<|im_end|>", None)),
        (draft, TARGET, TokenDifference(SIZE - 1, None, "<|im_end|>")),
    ):
        report = compare(target, other)
        assert report.differences == (expected,)
        assert "absent" in str(report)


def test_a_long_report_is_cut_and_counted() -> None:
    report = compare(TARGET, Tokenizer.from_gguf(sentencepiece()))
    assert len(report.differences) == 5
    assert report.differences[0].token_id == 0
    assert f"{report.num_differences} tokens differ" in str(report)
    assert f"and {report.num_differences - 5} more" in str(report)


@pytest.mark.parametrize(
    ("changes", "role"),
    [({"eot_token_id": 5}, "end"), ({"bos_token_id": SIZE - 3, "add_bos_token": True}, "prefix")],
)
def test_special_tokens_must_agree(changes: dict[str, Any], role: str) -> None:
    draft = Tokenizer.from_gguf(byte_level(**changes))
    report = compare(TARGET, draft)
    assert report.num_differences == 0
    assert set(report.special_differences) == {role}
    assert TARGET.fingerprint() != draft.fingerprint()
    with pytest.raises(CompatibilityError, match=f"special tokens at the {role} differ"):
        require_compatible(TARGET, draft)


def test_fingerprint_is_stable_and_tells_swapped_tokens_apart() -> None:
    again = Tokenizer.from_gguf(byte_level())
    assert again.fingerprint() == TARGET.fingerprint()
    assert len(again.fingerprint()) == 64
    swapped = changed(**{f"i{SIZE - 1}": TINY.tokens[SIZE - 2], f"i{SIZE - 2}": TINY.tokens[SIZE - 1]})
    assert swapped.fingerprint() != TARGET.fingerprint()
