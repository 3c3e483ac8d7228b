"""Streaming text: whole characters, the same text as decoding at once, whatever the ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sonoran.models.tokenizer.tokenizer import Tokenizer
from tests.models.tokenizer.vocabularies import byte_level, plain_texts, sentencepiece
from tests.tiny_tokenizer import SPECIALS

BYTE_LEVEL = Tokenizer.from_gguf(byte_level())
GPT2 = Tokenizer.from_gguf(byte_level("gpt-2"))
SENTENCEPIECE = Tokenizer.from_gguf(sentencepiece())


def ids_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, tokenizer.vocab_size + 3))


@given(ids=ids_of(BYTE_LEVEL), skip=st.booleans())
def test_pieces_join_to_what_the_library_decodes(ids: list[int], skip: bool) -> None:
    detokenizer = BYTE_LEVEL.detokenizer(skip_special_tokens=skip)
    joined = "".join([*map(detokenizer.push, ids), detokenizer.flush()])
    assert joined == BYTE_LEVEL.decode(ids, skip_special_tokens=skip)
    assert joined == BYTE_LEVEL._backend.decode(ids, skip_special_tokens=skip)


@given(ids=ids_of(SENTENCEPIECE), skip=st.booleans(), continuation=st.booleans())
def test_pieces_join_to_decode_for_sentencepiece(ids: list[int], skip: bool, continuation: bool) -> None:
    detokenizer = SENTENCEPIECE.detokenizer(skip, continuation)
    joined = "".join([*map(detokenizer.push, ids), detokenizer.flush()])
    assert joined == SENTENCEPIECE.decode(ids, skip, continuation)


@given(text=plain_texts(min_size=1))
def test_every_piece_is_the_next_part_of_the_text(text: str) -> None:
    """No piece ends inside a character: a prefix of ids always yields a prefix of the text."""
    detokenizer = GPT2.detokenizer()
    shown = ""
    for token_id in GPT2.encode(text):
        shown += detokenizer.push(token_id)
        assert text.startswith(shown)
    assert shown == text
    assert detokenizer.flush() == ""


def test_a_character_appears_with_its_last_byte() -> None:
    ids = GPT2.encode("€")
    assert len(ids) == 3
    detokenizer = GPT2.detokenizer()
    assert [detokenizer.push(i) for i in ids] == ["", "", "€"]


def test_an_unfinished_character_is_replaced_at_the_end_or_when_it_breaks() -> None:
    first, second, _ = GPT2.encode("€")
    detokenizer = GPT2.detokenizer()
    assert detokenizer.push(first) + detokenizer.push(second) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.push(GPT2.encode("a")[0]) == "a"
    assert detokenizer.push(first) == ""
    assert detokenizer.push(GPT2.encode("b")[0]) == "\ufffdb"


def test_skipped_tokens_do_not_break_a_character() -> None:
    ids = GPT2.encode("€")
    special = GPT2.encode(SPECIALS[0])
    assert GPT2.decode([ids[0], *special, *ids[1:]]) == "€"
