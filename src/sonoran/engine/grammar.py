"""Grammars that say what may be generated next, kept by llguidance: the mask of a row depends on its prefix alone."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sonoran.errors import ConfigError
from sonoran.sampling.structure import StructuredOutputs
from sonoran.types import BoolArray

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

WHITESPACE = r"( |\n {0,32}|\n\t{0,8})"
"""Between the parts of JSON: a space, or a line break with its indentation. Without limits, small models write
nothing else."""


class SpelledTokens(Protocol):
    """What a grammar needs of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Number of real tokens."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are no text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""
        ...


class Grammars:
    """Compiles forms of texts for one tokenizer; may be used from any thread.

    The first use reads the whole vocabulary, which takes a second for a large one.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        """``vocab_size`` is the target's: the length of a row of logits."""
        self._tokens: SpelledTokens = tokenizer
        self._size = vocab_size
        self._lock = threading.Lock()
        self._known: LLTokenizer | None = None

    def compile(self, wanted: StructuredOutputs) -> Grammar:
        """Return the grammar at its beginning. Raises ConfigError, with the reason, when it makes no sense."""
        from llguidance import LLMatcher, LLParserLimits

        tokenizer, text = self._tokenizer(), _source(wanted)
        matcher = LLMatcher(tokenizer, text, log_level=0, limits=LLParserLimits(verbose_errors=False))
        if matcher.is_error():
            raise ConfigError(f"structured_outputs: {_reason(matcher.get_error())}")
        return Grammar(matcher, self._size, tokenizer.vocab_size, frozenset(self._tokens.eos_ids))

    def _tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        with self._lock:
            if self._known is None:
                vocabulary = _Vocabulary(self._tokens)
                self._known = LLTokenizer(TokenizerWrapper(vocabulary), eos_token=list(self._tokens.eos_ids))
            return self._known


class _Vocabulary:
    """A tokenizer as llguidance reads one: special tokens are marked by a byte that no text has."""

    def __init__(self, tokens: SpelledTokens) -> None:
        if not tokens.eos_ids:
            raise ConfigError("structured_outputs: the model has no token that ends a text")
        hidden = tokens.special_ids | set(tokens.eos_ids)
        self.eos_token_id, self.bos_token_id = tokens.eos_ids[0], None
        self.special_token_ids = sorted(hidden)
        self.tokens = [
            (b"\xff" if i in hidden else b"") + tokens.token_bytes(i) for i in range(tokens.vocab_size)
        ]
        self._encode = tokens.encode

    def __call__(self, text: str | bytes) -> list[int]:
        given = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._encode(given, add_special_tokens=False)


@dataclass(slots=True, eq=False)
class Grammar:
    """A `Constraint`: a matcher at the committed text, and a copy of it that runs ahead along one draft."""

    _matcher: LLMatcher
    _size: int  # of the mask
    _vocab_size: int  # tokens that have a meaning; a draft may propose others, which only pad its output
    _ends: frozenset[int]
    _ahead: LLMatcher | None = None
    _ahead_tokens: tuple[int, ...] = ()

    def copy(self) -> Grammar:
        """Return another one at the same place."""
        return Grammar(self._matcher.deep_copy(), self._size, self._vocab_size, self._ends)

    def mask(self, tokens: Sequence[int]) -> BoolArray | None:
        """See `Constraint`. Raises ConfigError when the grammar is too complex to go on with."""
        if any(token in self._ends for token in tokens):
            return None
        known = len(self._ahead_tokens)
        if self._ahead is None or tuple(tokens[:known]) != self._ahead_tokens:
            self._ahead, self._ahead_tokens, known = self._matcher.deep_copy(), (), 0
        for token in tokens[known:]:
            self._ahead.consume_token(token)
        self._ahead_tokens = tuple(tokens)
        if self._ahead.is_error():
            raise ConfigError(f"structured_outputs: {_reason(self._ahead.get_error())}")
        bits = np.unpackbits(np.frombuffer(self._ahead.compute_bitmask(), np.uint8), bitorder="little")
        mask = np.zeros(self._size, bool)
        count = min(self._size, len(bits))
        mask[:count] = bits[:count]
        if not mask.any():
            raise ConfigError("structured_outputs: no token of the model goes on with the text")
        return mask

    def legal(self, tokens: Sequence[int]) -> int:
        """See `Constraint`."""
        spelled = list(itertools.takewhile(lambda token: token < self._vocab_size, tokens))
        return int(self._matcher.validate_tokens(spelled))

    def forced(self) -> list[int]:
        """See `Constraint`."""
        return list(self._matcher.compute_ff_tokens())

    def advance(self, tokens: Sequence[int]) -> None:
        """See `Constraint`. Nothing is known of what follows an end."""
        self._ahead, self._ahead_tokens = None, ()
        for token in tokens:
            if token in self._ends:
                return
            self._matcher.consume_token(token)


def _source(wanted: StructuredOutputs) -> str:
    """Return a form as llguidance writes it. Raises ConfigError."""
    from llguidance import LLMatcher, grammar_from

    try:
        if wanted.json is not None:
            return LLMatcher.grammar_from_json_schema(wanted.json, {"whitespace_pattern": WHITESPACE})
        if wanted.json_object:
            return LLMatcher.grammar_from_json_schema({"type": "object"}, {"whitespace_pattern": WHITESPACE})
        if wanted.regex is not None:
            return LLMatcher.grammar_from_regex(wanted.regex)
        if wanted.choice:
            return grammar_from("choice", json.dumps(wanted.choice))
        return grammar_from("grammar", wanted.grammar or "")
    except ValueError as error:
        raise ConfigError(f"structured_outputs: {_reason(str(error))}") from None


def _reason(text: str) -> str:
    return " ".join(text.split())[:500]
