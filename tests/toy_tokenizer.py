"""A tokenizer for toy models: token i is one fixed character, the last id ends a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,;:!?-+*/=()[]{}<>@#$%&"


class ToyDetokenizer:
    def __init__(self, tokenizer: ToyTokenizer) -> None:
        self._tokenizer = tokenizer

    def push(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id])

    def flush(self) -> str:
        return ""


class ToyTokenizer:
    def __init__(self, vocab_size: int = 64) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = (vocab_size - 1,)
        self.special_ids = frozenset(self.eos_ids)
        self.has_chat_template = True

    def detokenizer(self, skip_special_tokens: bool = True, continuation: bool = False) -> ToyDetokenizer:
        return ToyDetokenizer(self)

    def special_token_id(self, text: str) -> int | None:
        return self.eos_ids[0] if text == "<end>" else None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ALPHABET.index(character) % self.vocab_size for character in text]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join("" if i in self.special_ids else ALPHABET[i % len(ALPHABET)] for i in ids)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], tools: Any = None, **_: Any) -> list[int]:
        return self.encode("".join(f"{m['role'][0]}:{m['content']};" for m in messages))
