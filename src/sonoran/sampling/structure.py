"""What form a text must have, and what sampling needs to know of it: the tokens that may come next."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from sonoran.errors import ConfigError, check_unicode, nearest, shown
from sonoran.types import BoolArray

MAX_GRAMMAR = 256 * 1024
"""Characters of a schema, an expression or a grammar."""


class Constraint(Protocol):
    """The form of one text as far as it is committed."""

    def mask(self, tokens: Sequence[int]) -> BoolArray | None:
        """Return which tokens may follow the committed text and ``tokens``, which may follow it themselves.

        bool[V], V being the target's; None when the text has ended, so that nothing follows. At least one is true.
        A pure function of the committed text and ``tokens``.
        """
        ...

    def legal(self, tokens: Sequence[int]) -> int:
        """Return how many of the tokens may follow the committed text, in order."""
        ...

    def forced(self) -> list[int]:
        """Return tokens that spell the only text which may follow, as the tokenizer would; may be empty."""
        ...

    def advance(self, tokens: Sequence[int]) -> None:
        """Commit tokens that the mask allowed."""
        ...


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """The form of a text: exactly one of these, with vLLM's names.

    ``json`` is a JSON schema, as a mapping or as text, ``json_object`` true any JSON object, ``regex`` a regular
    expression of Rust's kind that the whole text matches, ``choice`` the texts there are to choose from, ``grammar`` a
    grammar in Lark's or llama.cpp's form. Raises ConfigError; whether a schema or a grammar makes sense is found out
    when a request is made.
    """

    json: str | None = None
    regex: str | None = None
    choice: tuple[str, ...] = ()
    grammar: str | None = None
    json_object: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.json, Mapping):
            object.__setattr__(self, "json", _dumped(self.json))
        for name in ("json", "regex", "grammar"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                wanted = "a JSON schema" if name == "json" else "a text that is not empty"
                raise ConfigError(f"structured_outputs.{name} is {shown(value)}; it must be {wanted}")
            _check_text(name, value or "")
        choice: Any = self.choice
        if isinstance(choice, str) or not isinstance(choice, Sequence):
            raise ConfigError(f"structured_outputs.choice is {shown(choice)}; it must be a list of texts")
        if not all(isinstance(item, str) and item for item in choice):
            raise ConfigError("structured_outputs.choice has an entry that is no text, or empty")
        object.__setattr__(self, "choice", tuple(choice))
        _check_text("choice", "".join(choice))
        if not isinstance(self.json_object, bool):
            raise ConfigError(
                f"structured_outputs.json_object is {shown(self.json_object)}; it must be true or false"
            )
        given = [item.name for item in fields(self) if getattr(self, item.name)]
        if len(given) != 1:
            raise ConfigError(
                "structured_outputs needs exactly one of json, regex, choice, grammar and json_object, "
                f"got {', '.join(given) or 'none'}"
            )

    @classmethod
    def from_value(cls, value: object) -> StructuredOutputs:
        """Return the value itself, or build it from parsed JSON. Raises ConfigError."""
        if isinstance(value, StructuredOutputs):
            return value
        if not isinstance(value, Mapping):
            raise ConfigError(f"structured_outputs is {shown(value)}; it must be a mapping")
        names = [item.name for item in fields(cls)]
        for key in value:
            if key not in names:
                raise ConfigError(f"structured_outputs has no {shown(key)}{nearest(str(key), names)}")
        return cls(**{key: item for key, item in value.items() if item is not None})


def _dumped(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"structured_outputs.json is no JSON: {error}") from None


def _check_text(name: str, text: str) -> None:
    if len(text) > MAX_GRAMMAR:
        raise ConfigError(
            f"structured_outputs.{name} has {len(text)} characters; it must have at most {MAX_GRAMMAR}"
        )
    check_unicode(text, f"structured_outputs.{name}")
