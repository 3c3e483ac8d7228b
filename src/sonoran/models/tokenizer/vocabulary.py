"""What a tokenizer knows besides its merges, whichever file it came from: tokens, their roles, their spelling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Spelling = Literal["byte_level", "sentencepiece"]

SPACE_MARK = "▁"
END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "<EOT>",
)
"""Tokens that end a generation wherever they are special, as llama.cpp has it: files often name only one."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MARKER = re.compile(r"<[|｜][^<>]+[|｜]>")
_PADDING = re.compile(r"\[PAD(\d{1,9})\]")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token strings by id, without padding, and the roles that tokens play.

    ``special`` tokens are dropped from decoded text on request; ``added`` tokens are matched whole in a text and
    spelled as they are. ``prefix`` and ``suffix`` are what ``add_special_tokens`` puts around a text.
    """

    tokens: tuple[str, ...]
    padded_size: int
    spelling: Spelling
    special: frozenset[int]
    added: frozenset[int]
    eos_ids: tuple[int, ...]
    bos_id: int | None = None
    eos_id: int | None = None
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    prefix_space: bool = False  # encoding puts a space before a text, decoding removes it
    named: Mapping[str, str] = field(default_factory=dict)  # bos_token, eos_token, ... for chat templates
    chat_templates: Mapping[str, str] = field(default_factory=dict)  # by name; "default" is the usual one


def real_size(tokens: Sequence[str]) -> int:
    """Number of tokens before the trailing ``[PAD<id>]`` entries that only fill the embedding matrix."""
    size = len(tokens)
    while size:
        match = _PADDING.fullmatch(tokens[size - 1])
        if match is None or int(match[1]) != size - 1:
            break
        size -= 1
    return size


def end_ids(
    tokens: Sequence[str], special: frozenset[int], declared: Iterable[int | None]
) -> tuple[int, ...]:
    """Sorted ids that end a generation: those that the files declare, and well-known special tokens."""
    known = {i for i in special if tokens[i] in END_TOKENS}
    return tuple(sorted(known | {i for i in declared if i is not None and 0 <= i < len(tokens)}))


def is_marker(token: str) -> bool:
    """True for an added token that is no word of any text, ``<|user|>``: some files do not call it special."""
    return _MARKER.fullmatch(token) is not None


def byte_alphabet() -> list[str]:
    """Printable stand-in of every byte, by byte value (the ``bytes_to_unicode`` table of GPT-2)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


_BYTE_OF = {character: byte for byte, character in enumerate(byte_alphabet())}


def token_bytes(token: str, spelling: Spelling, added: bool = False) -> bytes:
    """Bytes that a token stands for; ``added`` tokens stand for themselves, whatever the others' spelling.

    A byte-level token with a character outside the alphabet is plain text, too.
    """
    if added:
        return token.encode("utf-8")
    if spelling == "byte_level":
        try:
            return bytes([_BYTE_OF[character] for character in token])
        except KeyError:
            return token.encode("utf-8")
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte is not None:
        return bytes([int(byte[1], 16)])
    return token.replace(SPACE_MARK, " ").encode("utf-8")
