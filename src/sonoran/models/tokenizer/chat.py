"""Messages as clients of OpenAI's interface send them, made into what a model's chat template reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sonoran.errors import ConfigError, SonoranError
from sonoran.models.tokenizer.template import render

TEXT_PARTS = ("text", "input_text", "output_text")
_PROBE = "a text that no template writes"
# Unicode sets these characters apart for use inside a program; a text that has them all is no text.
_NONCHARACTERS = "".join(map(chr, range(0xFDD0, 0xFDF0)))


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Render a conversation; ``variables`` are the special tokens by name and whatever else the template reads.

    Messages may have the forms that OpenAI's clients send. ``content`` as a list of text parts is joined by line
    breaks unless the template reads parts. ``arguments`` of a tool call as JSON text become a mapping, unless the
    template takes only the text. Role ``developer`` becomes ``system`` unless the template has it; a template that
    leaves the developer's text out is refused.
    Raises ModelError when the template is not valid or never ends, ConfigError when it refuses the conversation.
    """
    _check(messages)
    values = {
        **(variables or {}),
        "tools": list(tools) if tools else None,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
    }
    refusals = []
    for developer, parsed in _ways(messages, template):
        prepared = [_message(i, m, template, developer, parsed) for i, m in enumerate(messages)]
        try:
            text = render(template, values | {"messages": prepared})
        except ConfigError as error:
            refusals.append(error)
            continue
        if all(part in text for message in messages for part in _developer_texts(message)):
            return text
        refusals.append(
            ConfigError("the model's chat template has no place for a message of the role 'developer'")
        )
    raise refusals[0]


def _ways(messages: Sequence[Mapping[str, Any]], template: str) -> Iterator[tuple[str, bool]]:
    """How to present messages: the role of a developer, and whether arguments are parsed; the likeliest first."""
    present = any(message["role"] == "developer" for message in messages)
    roles = ("developer", "system") if present and "developer" in template else ("system",)
    calls = any(message.get("tool_calls") for message in messages)
    for parsed in (True, False) if calls else (True,):
        for role in roles:
            yield role, parsed


def _check(messages: Sequence[Mapping[str, Any]]) -> None:
    if not messages:
        raise ConfigError("a chat needs at least one message, got none")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ConfigError(f"message {i} must be a mapping with a 'role', got {message!r:.200}")


def _message(
    i: int, message: Mapping[str, Any], template: str, developer: str, parsed: bool
) -> dict[str, Any]:
    result = dict(message)
    if result["role"] == "developer":
        result["role"] = developer
    content = result.get("content")
    if isinstance(content, (list, tuple)):
        texts = [_part(i, part) for part in content]
        parts = [{"type": "text", "text": text} for text in texts]
        result["content"] = parts if _reads_parts(template) else "\n".join(texts)
    if result.get("tool_calls") and parsed:
        result["tool_calls"] = [_tool_call(i, call) for call in result["tool_calls"]]
    return result


def _part(i: int, part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") in TEXT_PARTS else part
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise ConfigError(f"message {i}: a content part of type {kind!r:.60}; the model reads text only")
    return text


def _tool_call(i: int, call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"message {i}: arguments of a tool call are not valid JSON ({error})") from error
    return {**call, "function": {**function, "arguments": parsed}}  # type: ignore[dict-item]  # checked above


def _developer_texts(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content") if message["role"] == "developer" else None
    parts = [content] if isinstance(content, str) else [_part(0, part) for part in content or ()]
    return [line for part in parts if (line := part.strip())]


@lru_cache(maxsize=32)
def _reads_parts(template: str) -> bool:
    """True when the template takes the texts out of a list of parts, rather than writing or refusing the list."""
    message = {"role": "user", "content": [{"type": "text", "text": _PROBE}]}
    values = {"messages": [message], "tools": None, "documents": None, "add_generation_prompt": False}
    try:
        text = render(template, values | {"bos_token": "", "eos_token": "", "unk_token": "", "pad_token": ""})
    except SonoranError:
        return False
    return _PROBE in text and "'text'" not in text and '"text"' not in text


class Markers:
    """Tokens of a vocabulary that mean something beside their text, kept apart from the same text in a message.

    ``guard`` puts a character that no text has into every occurrence in a message, so that in the rendered chat
    the template's own occurrences alone are whole.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = frozenset(token for token in tokens if len(token) > 1)
        self._first = re.compile(
            "|".join(re.escape(c) for c in sorted({t[0] for t in self.tokens})) or "(?!)"
        )
        self._lengths = sorted({len(token) for token in self.tokens}, reverse=True)
        self._starts = {token[:n] for token in self.tokens for n in range(1, len(token))}

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Begin and end of the markers in a text: the leftmost, of these the longest, as tokenizers match them."""
        end = 0
        for candidate in self._first.finditer(text):
            begin = candidate.start()
            if begin < end:
                continue
            for length in self._lengths:
                if text[begin : begin + length] in self.tokens:
                    end = begin + length
                    yield begin, end
                    break

    def guard(self, value: Any, mark: str) -> Any:
        """Copy of a message with ``mark`` in every marker, whole or begun at the end of a text."""
        if isinstance(value, str):
            return self._guarded(value, mark)
        if isinstance(value, Mapping):
            return {self.guard(key, mark): self.guard(item, mark) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.guard(item, mark) for item in value]
        return value

    def _guarded(self, text: str, mark: str) -> str:
        places = [begin + 1 for begin, _ in self.find(text)]
        # A marker may also be completed by what the template writes next, the next part of a message for instance.
        for length in range(min(len(text), max(self._lengths, default=0)), 0, -1):
            if text[-length:] in self._starts:
                places.append(len(text) - length + 1)
                break
        pieces = zip([0, *places], [*places, len(text)], strict=True) if places else [(0, len(text))]
        return mark.join(text[begin:end] for begin, end in pieces)


def unused_character(value: Any) -> str:
    """A character that stands nowhere in a value. Raises ConfigError if all candidates do."""
    used: set[str] = set()
    for text in _strings(value):
        used.update(character for character in _NONCHARACTERS if character in text)
    free = next((character for character in _NONCHARACTERS if character not in used), None)
    if free is None:
        raise ConfigError("the messages hold every one of the characters that Unicode keeps out of texts")
    return free


def holds(value: Any, character: str) -> bool:
    """True when any text in a value has the character."""
    return any(character in text for text in _strings(value))


def _strings(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            waiting.extend([*item.keys(), *item.values()])
        elif isinstance(item, (list, tuple)):
            waiting.extend(item)
