"""Calls of functions: how a family of models writes them, and a reader of texts however they are cut."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sonoran.errors import SonoranError
from sonoran.sampling.stops import held_length
from sonoran.sampling.structure import StructuredOutputs

Format = Literal["hermes", "llama3"]
"""Hermes and Qwen: ``<tool_call>{"name": ..., "arguments": ...}</tool_call>``.
Llama 3: ``{"name": ..., "parameters": ...}`` and nothing else."""

BEGIN, END = "<tool_call>", "</tool_call>"
MAX_CALLS = 16
"""Calls in one answer where a grammar writes them."""

_PROBE = "probe_function"


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called; ``parameters`` is a JSON schema."""

    name: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A call, with its arguments as JSON text."""

    name: str
    arguments: str


def format_of(tokenizer: Any) -> Format | None:
    """Return how a model writes calls, judged by what its chat template makes of one; None when it has no tools."""
    function = {"name": _PROBE, "description": _PROBE, "parameters": {"type": "object", "properties": {}}}
    user = {"role": "user", "content": "a"}
    call = {"id": "a", "type": "function", "function": {"name": _PROBE, "arguments": {"key": "value"}}}
    tools = [{"type": "function", "function": function}]
    try:
        offered = tokenizer.render_chat([user], tools)
        called = tokenizer.render_chat([user, {"role": "assistant", "content": "", "tool_calls": [call]}])
    except SonoranError:
        return None
    if _PROBE not in offered or _PROBE not in called:
        return None
    return "hermes" if BEGIN in called else "llama3" if '"parameters"' in called else None


def grammar(form: Format, tools: Sequence[Tool], parallel: bool) -> StructuredOutputs:
    """Return the form of a text that calls at least one of some functions, and only one unless ``parallel``."""
    key = "arguments" if form == "hermes" else "parameters"
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, key: _as_object(tool.parameters)},
            "required": ["name", key],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    # As the models are used to write it, so that hardly anything is left to chance.
    style = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    rules = [f"call{i}: %json {json.dumps({'x-guidance': style, **call})}" for i, call in enumerate(calls)]
    any_call = " | ".join(f"call{i}" for i in range(len(calls)))
    if form == "hermes":
        rules += [f'call: "{BEGIN}\\n" ({any_call}) "\\n{END}"']
        more = f' ("\\n" call){{0,{MAX_CALLS - 1}}}' if parallel else ""
    else:
        rules += [f"call: {any_call}"]
        more = f' ("; " call){{0,{MAX_CALLS - 1}}}' if parallel else ""
    return StructuredOutputs(grammar="\n".join([f"start: call{more}", *rules]))


def _as_object(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", **parameters}


@dataclass(slots=True)
class ToolReader:
    """Takes a text piece by piece and tells what is said and what is called.

    What it returns in all depends on the text alone, not on the pieces. A call that is no JSON, or of a function that
    was not offered, is part of the text. Space around calls is left out.
    """

    form: Format
    names: frozenset[str]
    _rest: str = ""  # not decided yet
    _calls: int = 0
    _plain: bool = False  # Llama 3: the text is none of calls
    _called: bool = False  # nothing but space was seen since the last call
    _inside: bool = False  # Hermes: after the beginning of a call

    @staticmethod
    def of(form: Format, tools: Iterable[Tool]) -> ToolReader:
        """Return a reader at the beginning of a text."""
        return ToolReader(form, frozenset(tool.name for tool in tools))

    def push(self, text: str) -> list[str | Call]:
        """Take a piece; return texts and calls that are decided, in order."""
        self._rest += text
        return self._hermes(False) if self.form == "hermes" else self._llama3(False)

    def flush(self) -> list[str | Call]:
        """Return what is left at the end of the text."""
        return self._hermes(True) if self.form == "hermes" else self._llama3(True)

    def _hermes(self, last: bool) -> list[str | Call]:
        found: list[str | Call] = []
        while True:
            step = self._inside_step(last) if self._inside else self._outside_step(last)
            if step is None:
                return found
            found += [item for item in step if item]

    def _outside_step(self, last: bool) -> list[str | Call] | None:
        if self._called:
            self._rest = self._rest.lstrip()
            self._called = not self._rest
        before, marker, after = self._rest.partition(BEGIN)
        if marker:
            # Whether the space goes is known only when the call is one.
            said = before.rstrip()
            self._rest, self._inside = before[len(said) :] + marker + after, True
            return [said]
        if last:
            said, self._rest = self._rest, ""
            return [said] if said else None
        kept = held_length(self._rest, (BEGIN,))
        said = self._rest[: len(self._rest) - kept].rstrip()
        self._rest = self._rest[len(said) :]
        return [said] if said else None

    def _inside_step(self, last: bool) -> list[str | Call] | None:
        space, _, body = self._rest.partition(BEGIN)
        end = body.find(END)
        while end >= 0 and _in_string(body[:end]):
            end = body.find(END, end + 1)
        if end < 0 and not last:
            return None
        inner, after = (body, "") if end < 0 else (body[:end], body[end + len(END) :])
        self._rest, self._inside = after, False
        call = self._call(inner, "arguments")
        if call is not None:
            return [call]
        return [space + BEGIN + inner + (END if end >= 0 else "")]

    def _llama3(self, last: bool) -> list[str | Call]:
        found: list[str | Call] = []
        while not self._plain:
            begun = self._rest.lstrip(" \n;" if self._calls else " \n")
            if not begun and not last:
                return found
            if not begun.startswith("{"):
                self._plain = not self._calls or bool(begun)
                break
            try:
                _, end = json.JSONDecoder().raw_decode(begun)
            except (ValueError, RecursionError):
                if not last:
                    return found
                self._plain = True
                break
            call = self._call(begun[:end], "parameters")
            if call is None:
                self._plain = True
                break
            found.append(call)
            self._rest = begun[end:]
        if self._plain and self._rest:
            found.append(self._rest)
        if self._plain or last:
            self._rest = ""
        return found

    def _call(self, text: str, key: str) -> Call | None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in self.names:
            return None
        arguments = value.get(key, value.get("arguments", {}))
        if not isinstance(arguments, dict):
            return None
        self._calls, self._called = self._calls + 1, True
        return Call(name, json.dumps(arguments, ensure_ascii=False))


def _in_string(text: str) -> bool:
    """Return whether a piece of JSON ends within a string."""
    inside, escaped = False, False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = inside
        elif character == '"':
            inside = not inside
    return inside
