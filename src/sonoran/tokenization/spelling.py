"""How vocabularies spell bytes: GPT-2's printable alphabet, and SentencePiece's pieces with byte tokens."""

from __future__ import annotations

import re
from typing import Literal

Spelling = Literal["byte_level", "sentencepiece"]

SPACE_MARK = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> list[str]:
    """Printable stand-in of every byte, by byte value (the ``bytes_to_unicode`` table of GPT-2)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


_BYTE_OF = {character: byte for byte, character in enumerate(byte_alphabet())}


def token_bytes(token: str, spelling: Spelling, added: bool = False) -> bytes:
    """Bytes that a token stands for; ``added`` tokens of a SentencePiece vocabulary stand for themselves.

    A byte-level token with a character outside the alphabet (an added one, ``<｜end｜>``) is plain text.
    """
    if spelling == "byte_level":
        try:
            return bytes([_BYTE_OF[character] for character in token])
        except KeyError:
            return token.encode("utf-8")
    if added:
        return token.encode("utf-8")
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte is not None:
        return bytes([int(byte[1], 16)])
    return token.replace(SPACE_MARK, " ").encode("utf-8")
