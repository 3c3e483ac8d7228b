"""Token ids to text, one at a time: characters come out as soon as they are complete."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class Detokenizer:
    """Turn ids into text incrementally; everything pushed and flushed, joined, is ``decode`` of all ids.

    ``token_bytes`` gives the bytes of an id (empty for ids that are skipped). A multi-byte character is held
    back until its last byte; bytes that can never become one come out as U+FFFD. A push costs the length of
    its token. ``strip_space`` removes one space at the very beginning: some vocabularies put it there.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], strip_space: bool = False) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip_space = strip_space

    def push(self, token_id: int) -> str:
        """Text that this token completes, possibly empty."""
        return self._clean(self._decoder.decode(self._token_bytes(token_id)))

    def flush(self) -> str:
        """Rest of the text: U+FFFD where it ends inside a character. The next push starts a new character."""
        text = self._clean(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        return text

    def _clean(self, text: str) -> str:
        if text and self._strip_space:
            self._strip_space = False
            return text.removeprefix(" ")
        return text
