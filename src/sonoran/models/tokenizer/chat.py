"""Chat templates: untrusted Jinja2 programs from model files, rendered in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sonoran.errors import ConfigError, ModelError


class _GenerationTag(Extension):
    """``{% generation %}`` marks text for training; here it only yields its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Node | list[Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Any) -> str:
        return str(caller())


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Render a conversation with the functions and whitespace rules that Hugging Face templates rely on.

    ``variables`` are the special tokens by name and whatever else the template reads (``enable_thinking``).
    Raises ModelError when the template is not valid, ConfigError when it refuses the conversation.
    """
    _check_messages(messages)
    try:
        compiled = _compile(template)
    except jinja2.TemplateSyntaxError as error:
        raise ModelError(
            f"the model's chat template is not valid (line {error.lineno}): {error.message}"
        ) from error
    try:
        return compiled.render(
            **{
                **(variables or {}),
                "messages": messages,
                "tools": list(tools) if tools else None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            }
        )
    except (
        jinja2.TemplateError,
        TypeError,
        ValueError,
        ArithmeticError,
        LookupError,
        AttributeError,
    ) as error:
        raise ConfigError(f"the model's chat template refuses the messages: {error}") from error


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    if not messages:
        raise ConfigError("a chat needs at least one message, got none")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ConfigError(f"message {i} must be a mapping with a 'role', got {message!r:.200}")


@lru_cache(maxsize=32)
def _compile(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which would change what the model reads.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
