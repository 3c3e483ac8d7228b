"""Metadata of tiny vocabularies, as a GGUF file holds it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.tiny_tokenizer import CHAT_TEMPLATE, SPECIALS, tiny_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

PIECES = (
    "▁", "a", "b", "h", "e", "l", "o", "w", "r", "d", "t", "i", "n", "g", "s", ".", "1", "é",
    "he", "ll", "lo", "llo", "hello", "▁h", "▁he", "▁hello", "▁w", "or", "▁wor", "ld", "▁world",
    "in", "ing", "th", "the", "▁the", "▁t", "▁▁", "▁▁▁▁", "ab", "ba", "aba", "aa", "aaa",
)  # fmt: skip
SCORES = {piece: -float((7 * i) % 29 + len(PIECES) / (len(piece) + 1)) for i, piece in enumerate(PIECES)}

SPECIAL_TOKENS = (*SPECIALS, "<unk>", "<s>", "</s>")


def plain_texts(exclude: str = "", min_size: int = 0) -> st.SearchStrategy[str]:
    """Any Unicode text in which no special token is written: those have a meaning, and tests of their own."""
    characters = st.characters(exclude_categories=["Cs"], exclude_characters=exclude)
    return st.text(characters, min_size=min_size).filter(
        lambda text: not any(s in text for s in SPECIAL_TOKENS)
    )


def byte_level(pre: str = "qwen2", padding: int = 0, **changes: Any) -> dict[str, Any]:
    """The tiny byte-level vocabulary; ``changes`` replace keys of ``tokenizer.ggml``, None removes them."""
    tiny = tiny_tokenizer()
    count = len(tiny.tokens)
    values = {
        "model": "gpt2",
        "pre": pre,
        "tokens": [*tiny.tokens, *(f"[PAD{count + i}]" for i in range(padding))],
        "token_type": [NORMAL] * (count - len(SPECIALS)) + [CONTROL] * len(SPECIALS) + [UNUSED] * padding,
        "merges": list(tiny.merges),
        "eos_token_id": tiny.id("<|im_end|>"),
    }
    return _metadata(values | changes) | {"tokenizer.chat_template": CHAT_TEMPLATE}


def sentencepiece(**changes: Any) -> dict[str, Any]:
    """A SentencePiece vocabulary: specials, all byte tokens, then PIECES."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    values = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * 259 + [SCORES[piece] for piece in PIECES],
        "token_type": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(PIECES),
    }
    return _metadata(values | changes)


def _metadata(values: dict[str, Any]) -> dict[str, Any]:
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}
