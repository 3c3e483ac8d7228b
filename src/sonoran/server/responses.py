"""OpenAI's Responses interface, without state: a request is a chat in other words, an answer a list of items."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from sonoran.errors import shown
from sonoran.server.bodies import request_metrics
from sonoran.server.errors import ApiError, bad
from sonoran.server.protocol import Job, Reader, read_job
from sonoran.server.service import Entry, Service
from sonoran.server.tools import Call, ToolReader
from sonoran.types import RequestDelta

Document = dict[str, Any]

SAME = frozenset({
    "model", "stream", "temperature", "top_p", "parallel_tool_calls", "top_k", "min_p", "seed", "stop", "stop_token_ids",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "bad_words", "ignore_eos", "min_tokens",
    "speculative", "num_speculative_tokens", "verification", "structured_outputs", "request_id", "timeout_s",
    "chat_template_kwargs",
})  # fmt: skip
"""Fields that mean what they mean in a chat."""

FIELDS = SAME | {
    "input", "instructions", "max_output_tokens", "tools", "tool_choice", "text", "store", "previous_response_id",
    "conversation", "background", "prompt", "include", "truncation", "reasoning", "stream_options", "top_logprobs",
    "max_tool_calls",
}  # fmt: skip

STATEFUL = {
    "previous_response_id": "give the whole conversation in input",
    "conversation": "give the whole conversation in input",
    "prompt": "no prompts are kept here; give the text in input",
    "background": "answers are not kept; wait for this one, or stream it",
    "store": "answers are not kept; set it to false, or leave it out",
}
"""What needs a memory that the server does not have, unless false, and what to do instead."""


OWN_NAMES = {"messages": "input", "response_format": "text.format"}
"""Fields of a chat that are something else here."""


def read_response(body: Mapping[str, Any]) -> Job:
    """Check the body of a request. Raises ApiError; ConfigError for a sampling parameter."""
    reader = Reader(body, FIELDS)
    for name, instead in STATEFUL.items():
        if reader.values.get(name) not in (None, False):
            raise bad(f"{name} is not supported: {instead}", name, "unsupported_parameter")
    if reader.values.get("truncation") not in (None, "disabled"):
        raise bad("truncation must be 'disabled': nothing is left out of a prompt", "truncation")
    for name in ("include", "top_logprobs", "max_tool_calls"):
        if reader.values.get(name):
            raise bad(f"{name} is not supported; leave it out", name, "unsupported_parameter")
    reader.mapping("reasoning")
    Reader(reader.mapping("stream_options") or {}, ("include_obfuscation",), "stream_options")
    chat: Document = {name: value for name, value in reader.values.items() if name in SAME}
    chat["messages"] = _messages(reader)
    limit = reader.whole("max_output_tokens", 1, 2**31 - 1)
    text = Reader(reader.mapping("text") or {}, ("format", "verbosity"), "text")
    chat |= {"max_completion_tokens": limit, "response_format": _format(text.mapping("format"))}
    if "tools" in reader.values:
        chat["tools"] = _tools(reader.values["tools"])
    chat["tool_choice"] = _choice(reader.values.get("tool_choice"))
    try:
        return read_job("chat", chat, kind="response")
    except ApiError as error:
        first = (error.param or "").partition("[")[0].partition(".")[0]
        error.param = OWN_NAMES.get(first, error.param)
        raise


def _messages(reader: Reader) -> list[Document]:
    given, instructions = reader.values.get("input"), reader.text("instructions")
    messages: list[Document] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise bad("input must be a text or a list of at least one item", "input")
    for i, item in enumerate(given):
        name = f"input[{i}]"
        if not isinstance(item, dict):
            raise bad(f"{name} must be an object, got {shown(item)}", name)
        kind = item.get("type") or "message"
        if kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "function_call":
            function = {"name": _text(item, "name", name), "arguments": _text(item, "arguments", name)}
            call = {"id": _text(item, "call_id", name), "type": "function", "function": function}
            if messages and messages[-1]["role"] == "assistant":
                messages[-1].setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "function_call_output":
            content = item.get("output")
            messages.append(
                {"role": "tool", "tool_call_id": _text(item, "call_id", name), "content": content}
            )
        else:
            raise bad(
                f"{name}.type must be message, function_call or function_call_output, got {shown(kind)}",
                f"{name}.type",
            )
    return messages


def _text(item: Document, key: str, name: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise bad(f"{name}.{key} must be a string, got {shown(value)}", f"{name}.{key}")
    return value


def _format(given: Document | None) -> Document | None:
    """Return the form of a text as a chat has it, where a schema is one level deeper."""
    if given is None or given.get("type") != "json_schema":
        return given
    return {
        "type": "json_schema",
        "json_schema": {key: value for key, value in given.items() if key != "type"},
    }


def _tools(given: object) -> object:
    """Return tools as a chat has them, where what describes a function is one level deeper."""
    if not isinstance(given, list):
        return given
    return [
        {"type": tool.get("type"), "function": {key: value for key, value in tool.items() if key != "type"}}
        if isinstance(tool, dict)
        else tool
        for tool in given
    ]


def _choice(given: object) -> object:
    if not isinstance(given, dict) or given.get("type") != "function":
        return given
    return {"type": "function", "function": {key: value for key, value in given.items() if key != "type"}}


class ResponseWriter:
    """Makes the documents and events of one request out of its news."""

    def __init__(self, service: Service, entry: Entry, body: Mapping[str, Any]) -> None:
        """``body`` is the request, of which answers repeat the settings."""
        self.job: Job = entry.job
        self._service, self._entry, self._body = service, entry, body
        self._created = int(time.time())
        self._output: list[Document] = []
        self._number = 0  # of the next event
        self._status, self._reason = "in_progress", ""
        self._num_tokens = 0
        self._metrics: Document | None = None
        tools, form = entry.job.tools, entry.tool_format
        self._calls = None if tools is None or form is None else ToolReader.of(form, tools.callable)

    def take(self, prompt: int, delta: RequestDelta) -> None:
        """Add news."""
        for _ in self.chunks(prompt, delta):
            pass

    def chunks(self, prompt: int, delta: RequestDelta) -> Iterator[Document]:
        """Yield the events of a stream for some news."""
        if self._number == 0:
            yield self._event("response.created", response=self.whole())
            yield self._event("response.in_progress", response=self.whole())
        for sample in delta.samples:
            self._num_tokens += len(sample.token_ids)
            for item in self._items(sample.text, sample.finish_reason is not None):
                yield from self._called(item) if isinstance(item, Call) else self._said(item)
            if sample.finish_reason is not None:
                self._reason = sample.finish_reason
        if delta.finished:
            self._metrics = delta.metrics
            yield from self._end()

    def whole(self) -> Document:
        """Return the response as far as it has come."""
        incomplete = {"reason": "max_output_tokens"} if self._status == "incomplete" else None
        params, body = self.job.params, self._body
        document: Document = {
            "id": f"resp_{self._entry.id}",
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if self._status == "completed" else None,
            "status": self._status,
            "error": None,
            "incomplete_details": incomplete,
            "model": self.job.model,
            "output": self._output,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "max_tool_calls": None,
            "previous_response_id": None,
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "tools": body.get("tools") or [],
            "tool_choice": body.get("tool_choice") or "auto",
            "text": body.get("text") or {"format": {"type": "text"}},
            "reasoning": {"effort": None, "summary": None},
            "temperature": params.temperature,
            "top_p": params.top_p,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "top_logprobs": 0,
            "truncation": "disabled",
            "background": False,
            "store": False,
            "service_tier": "default",
            "metadata": body.get("metadata") or {},
            "user": body.get("user"),
            "safety_identifier": body.get("safety_identifier"),
            "prompt_cache_key": body.get("prompt_cache_key"),
            "usage": self._usage() if self._metrics is not None else None,
        }
        if self._metrics is not None:
            document["metrics"] = request_metrics(self._metrics)
        return document

    def error(self, error: ApiError) -> Document:
        """Return the event for what goes wrong in the middle of a stream."""
        return self._event("error", code=error.code, message=error.message, param=error.param)

    def _event(self, kind: str, **fields: Any) -> Document:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _items(self, text: str, last: bool) -> list[str | Call]:
        if self._calls is None:
            return [text] if text else []
        return self._calls.push(text) + (self._calls.flush() if last else [])

    def _said(self, text: str) -> Iterator[Document]:
        if not self._open:
            yield from self._begin_message()
        message = self._output[-1]
        message["content"][0]["text"] += text
        place = {"item_id": message["id"], "output_index": len(self._output) - 1, "content_index": 0}
        yield self._event("response.output_text.delta", **place, delta=text, logprobs=[])

    @property
    def _open(self) -> bool:
        return bool(self._output) and self._output[-1]["status"] == "in_progress"

    def _begin_message(self) -> Iterator[Document]:
        part: Document = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item: Document = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
        }
        yield self._event(
            "response.output_item.added", output_index=len(self._output), item={**item, "content": []}
        )
        self._output.append({**item, "content": [part]})
        place = {"item_id": item["id"], "output_index": len(self._output) - 1, "content_index": 0}
        yield self._event("response.content_part.added", **place, part=dict(part))

    def _end_message(self, status: str = "completed") -> Iterator[Document]:
        message, index = self._output[-1], len(self._output) - 1
        part = message["content"][0]
        place = {"item_id": message["id"], "output_index": index, "content_index": 0}
        yield self._event("response.output_text.done", **place, text=part["text"], logprobs=[])
        yield self._event("response.content_part.done", **place, part=part)
        message["status"] = status
        yield self._event("response.output_item.done", output_index=index, item=message)

    def _called(self, call: Call) -> Iterator[Document]:
        if self._open:
            yield from self._end_message()
        item: Document = {
            "id": f"fc_{uuid.uuid4().hex}",
            "type": "function_call",
            "status": "in_progress",
            "call_id": f"call_{uuid.uuid4().hex[:24]}",
            "name": call.name,
            "arguments": "",
        }
        index = len(self._output)
        yield self._event("response.output_item.added", output_index=index, item=item)
        place = {"item_id": item["id"], "output_index": index}
        yield self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
        yield self._event(
            "response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments
        )
        item = {**item, "status": "completed", "arguments": call.arguments}
        self._output.append(item)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _end(self) -> Iterator[Document]:
        self._status = {"stop": "completed", "length": "incomplete"}.get(self._reason, "cancelled")
        if not self._output:
            yield from self._begin_message()
        if self._open:
            yield from self._end_message("completed" if self._status == "completed" else "incomplete")
        # There is no event for an answer that somebody ended.
        kind = "completed" if self._status == "completed" else "incomplete"
        yield self._event(f"response.{kind}", response=self.whole())

    def _usage(self) -> Document:
        prompt = self._entry.num_prompt_tokens
        cached = sum(request.sequences[0].num_cached for request in self._entry.requests)
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": self._num_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + self._num_tokens,
        }
