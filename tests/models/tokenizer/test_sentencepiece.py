"""SentencePiece vocabularies of GGUF files: spaces, byte fallback, merges recovered from scores."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.errors import ModelError
from sonoran.models.tokenizer.tokenizer import Tokenizer
from tests.models.tokenizer.vocabularies import PIECES, SCORES, USER_DEFINED, plain_texts, sentencepiece

TINY = Tokenizer.from_gguf(sentencepiece())
NO_PREFIX = Tokenizer.from_gguf(sentencepiece(add_space_prefix=False))
# The mark stands for a space in these vocabularies, so it cannot survive.
UNICODE = plain_texts(exclude="▁")
LETTERS = st.text("abhelowrdting s.1é")


def strings(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_strings()[i] for i in tokenizer.encode(text, add_special_tokens=False)]


def merge_by_score(text: str) -> list[str]:
    """SentencePiece's own rule: join the neighbours whose union scores best, the leftmost among equals."""
    parts = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        joins = [(SCORES[a + b], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in SCORES]
        if not joins:
            return parts
        at = -max(joins)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@given(text=LETTERS)
def test_merges_from_scores_follow_the_scores(text: str) -> None:
    assert strings(TINY, text) == merge_by_score(text)


@pytest.mark.parametrize("tokenizer", [TINY, NO_PREFIX])
@given(text=UNICODE)
def test_decoding_undoes_encoding(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=UNICODE)
def test_pieces_are_those_that_the_library_decodes(text: str) -> None:
    ids = TINY.encode(text)
    assert TINY._backend.decode(ids) == text


def test_prefix_bos_and_bytes() -> None:
    assert TINY.encode("hello")[0] == TINY.bos_id == 1
    assert TINY.adds_bos
    assert TINY.eos_ids == (2,)
    assert strings(TINY, "hello") == ["▁hello"]
    assert strings(NO_PREFIX, "hello") == ["hello"]
    assert strings(TINY, "€") == ["▁", "<0xE2>", "<0x82>", "<0xAC>"]
    assert strings(TINY, "") == []


def test_a_continuation_keeps_its_leading_space() -> None:
    ids = TINY.encode("hello world", add_special_tokens=False)
    assert TINY.decode(ids[1:]) == "world"
    assert TINY.decode(ids[1:], continuation=True) == " world"
    assert TINY.decode(TINY.encode("  hello")) == "  hello"


def test_special_tokens_split_the_text() -> None:
    ids = TINY.encode("hello</s>")
    assert ids[-1] == 2
    assert TINY.decode(ids) == "hello"
    assert TINY.decode(ids, skip_special_tokens=False) == "<s> hello</s>"


def test_user_defined_tokens_are_matched_whole_and_kept() -> None:
    base = sentencepiece()
    tokens = [*base["tokenizer.ggml.tokens"], "[TOOL]"]
    tokenizer = Tokenizer.from_gguf(
        sentencepiece(
            tokens=tokens,
            scores=[*base["tokenizer.ggml.scores"], 0.0],
            token_type=[*base["tokenizer.ggml.token_type"], USER_DEFINED],
        )
    )
    ids = tokenizer.encode("hello[TOOL]")
    assert ids[-1] == len(tokens) - 1
    assert tokenizer.decode(ids) == "hello[TOOL]"


def test_a_directory_with_the_same_vocabulary_is_the_same_tokenizer(tmp_path: Path) -> None:
    TINY._backend.save(str(tmp_path / "tokenizer.json"))
    named = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "unk_token": "<unk>",
        "add_bos_token": True,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    tokenizer = Tokenizer.from_directory(tmp_path)
    ids = tokenizer.encode(" hello € world")
    assert ids == TINY.encode(" hello € world")
    assert tokenizer.decode(ids) == " hello € world"
    assert tokenizer.decode(ids[5:], continuation=True) == TINY.decode(ids[5:], continuation=True)
    assert tokenizer.fingerprint() == TINY.fingerprint()


def test_without_scores_or_merges_the_error_says_so() -> None:
    with pytest.raises(ModelError, match=f"scores has 0 entries for {259 + len(PIECES)} tokens"):
        Tokenizer.from_gguf(sentencepiece(scores=None))


def test_a_token_without_end_is_refused() -> None:
    tokens = [*sentencepiece()["tokenizer.ggml.tokens"], "a" * 100_000]
    types = [*sentencepiece()["tokenizer.ggml.token_type"], 1]
    with pytest.raises(ModelError, match=f"token {len(tokens) - 1} has 100000 characters"):
        Tokenizer.from_gguf(sentencepiece(tokens=tokens, token_type=types, scores=[0.0] * len(tokens)))


def test_merges_of_the_file_win_over_scores() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece(merges=["h e"], scores=None))
    assert strings(tokenizer, "hello") == ["▁", "he", "l", "l", "o"]
