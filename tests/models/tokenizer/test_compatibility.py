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


def shorter(count: int) -> Tokenizer:
    """The tiny vocabulary without its last tokens, which are special."""
    kept = SIZE - count
    types = [1] * (SIZE - 3) + [3, 3, 3]
    values = {"tokens": list(TINY.tokens[:kept]), "token_type": types[:kept], "eos_token_id": SIZE - 3}
    return Tokenizer.from_gguf(byte_level(**values))


def test_a_vocabulary_that_ends_early_shares_what_it_has() -> None:
    draft = shorter(1)
    report = require_compatible(TARGET, draft)
    assert (report.num_shared, report.num_differences, report.differences) == (SIZE - 1, 0, ())
    assert report.never_proposed == (TokenDifference(SIZE - 1, "<|im_end|>", None),)
    assert f"compatible in the {SIZE - 1} tokens that both have" in str(report)
    assert f"can never propose ids {SIZE - 1} to {SIZE - 1} ('<|im_end|>'), which it lacks" in str(report)
    other = require_compatible(draft, TARGET)
    assert (other.num_shared, other.never_proposed) == (SIZE - 1, ())
    assert str(other).endswith("; 1 that only the draft has are left out")
    assert TARGET.fingerprint(SIZE - 1) == draft.fingerprint() == draft.fingerprint(SIZE - 1)
    assert TARGET.fingerprint() != draft.fingerprint()


def test_common_ids_that_mean_different_tokens_stay_an_error() -> None:
    strings = [*TINY.tokens[:-3], "<|other|>", *TINY.tokens[-2:], "<|added|>"]
    types = [1] * (SIZE - 3) + [3, 3, 3, 3]
    draft = Tokenizer.from_gguf(byte_level(tokens=strings, token_type=types))
    report = compare(TARGET, draft)
    assert not report.compatible
    assert report.differences == (TokenDifference(SIZE - 3, "<|endoftext|>", "<|other|>"),)


def test_a_beginning_alone_is_no_common_vocabulary() -> None:
    few = Tokenizer.from_gguf(
        byte_level(tokens=list(TINY.tokens[: SIZE // 2]), token_type=[1] * (SIZE // 2), merges=[])
    )
    report = compare(TARGET, few)
    assert not report.compatible
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
