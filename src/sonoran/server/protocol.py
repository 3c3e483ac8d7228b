"""Requests as OpenAI's clients send them, checked field by field: what is unknown is refused, nothing is ignored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from sonoran.errors import nearest, shown
from sonoran.llm import Prompt
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.structure import StructuredOutputs
from sonoran.server.errors import ApiError, bad
from sonoran.server.tools import Tool

Kind = Literal["chat", "completion", "response"]

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_LOGPROBS = 20
MAX_MESSAGES = 2048
MAX_PROMPTS = 64
MAX_TOOLS = 128
DEFAULT_COMPLETION_TOKENS = 16
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")

SAMPLED = frozenset(SamplingParams.__dataclass_fields__) - {"logprobs", "prompt_logprobs", "max_tokens"}
"""Fields that mean in a request what they mean in SamplingParams."""

COMMON = SAMPLED | {
    "model", "max_tokens", "stream", "stream_options", "logprobs", "return_token_ids", "return_tokens_as_token_ids",
    "request_id", "timeout_s", "prompt_logprobs", "response_format",
}  # fmt: skip
FIELDS: dict[str, frozenset[str]] = {
    "chat": COMMON
    | {"messages", "max_completion_tokens", "top_logprobs", "add_generation_prompt", "chat_template_kwargs"}
    | {"tools", "tool_choice", "parallel_tool_calls"},
    "completion": COMMON | {"prompt", "echo", "best_of", "suffix", "add_special_tokens"},
}

WITHOUT_EFFECT = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "reasoning_effort", "verbosity",
    "priority", "spaces_between_special_tokens",
})  # fmt: skip
"""Fields that clients send and that change nothing here."""

NOT_SUPPORTED = {
    "functions": "they are tools now",
    "function_call": "it is tool_choice now",
    "audio": "the model has no audio",
    "modalities": "the model has text only",
    "prediction": "predicted outputs are not supported",
    "guided_json": "it is structured_outputs.json now",
    "guided_regex": "it is structured_outputs.regex now",
    "guided_choice": "it is structured_outputs.choice now",
    "guided_grammar": "it is structured_outputs.grammar now",
    "use_beam_search": "beam search is not supported",
    "length_penalty": "beam search, to which length_penalty belongs, is not supported",
    "continue_final_message": "going on with the last message is not supported",
    "chat_template": "a template in a request is not trusted",
    "documents": "documents are not supported",
    "web_search_options": "there is no search",
}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Functions that a chat may call: as the client described them, and those that its answer may name.

    With ``forced`` it calls at least one of them, and only one unless ``parallel``.
    """

    described: list[dict[str, Any]]
    callable: tuple[Tool, ...]
    forced: bool = False
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Job:
    """A checked request. A chat has ``messages``, a completion ``prompts``."""

    kind: Kind
    model: str
    params: SamplingParams
    messages: list[dict[str, Any]] | None = None
    prompts: tuple[Prompt, ...] = ()
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    include_speculation: bool = False
    echo: bool = False
    token_ids: bool = False
    tokens_as_ids: bool = False
    add_special_tokens: bool = True
    tools: ToolUse | None = None
    format_field: str = "structured_outputs"
    generation_prompt: bool = True
    template_kwargs: Mapping[str, Any] | None = None
    request_id: str | None = None
    timeout_s: float | None = None

    @property
    def form_field(self) -> str:
        """The field that an error in the form of the text is about."""
        if self.tools is not None:
            return "tools"
        return self.format_field

    @property
    def num_samples(self) -> int:
        """Texts that are to be generated."""
        return self.params.n * max(1, len(self.prompts))


def read_json(body: bytes) -> dict[str, Any]:
    """Return the object in a body. Raises ApiError."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise bad(f"the body is not valid JSON: {text}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise bad(f"the body must be a JSON object, got {shown(value)}", code="invalid_json")
    return value


class Reader:
    """Takes fields out of an object; null is as good as absent."""

    def __init__(self, values: Mapping[str, Any], known: Iterable[str], within: str = "") -> None:
        self._within = f"{within}." if within else ""
        names = sorted(known)
        self.values = {key: value for key, value in values.items() if value is not None}
        for key in self.values:
            if key in NOT_SUPPORTED and not within:
                raise bad(f"{key}: {NOT_SUPPORTED[key]}; leave it out", key, "unsupported_parameter")
            if key not in names and (within or key not in WITHOUT_EFFECT):
                raise bad(
                    f"unknown field {shown(self._within + key)}{nearest(key, names)}",
                    self._within + key[:80],
                    "unknown_parameter",
                )

    def _wrong(self, name: str, wanted: str) -> ApiError:
        return bad(
            f"{self._within}{name} must be {wanted}, got {shown(self.values[name])}", self._within + name
        )

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean."""
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def whole(self, name: str, low: int, high: int) -> int | None:
        """Return a whole number, None when it is absent."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(name, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """Return a number, None when it is absent."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self._wrong(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def text(self, name: str) -> str | None:
        """Return a string, None when it is absent."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "a string")
        return value

    def mapping(self, name: str) -> dict[str, Any] | None:
        """Return an object, None when it is absent."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return value


def read_job(shape: Literal["chat", "completion"], body: Mapping[str, Any], kind: Kind | None = None) -> Job:
    """Check the body of a chat or a completion; ``kind`` is what it was made of.

    Raises ApiError; ConfigError for a sampling parameter.
    """
    reader = Reader(body, FIELDS[shape])
    model = reader.text("model")
    if not model:
        raise bad(
            "model is missing; GET /v1/models lists what there is", "model", "missing_required_parameter"
        )
    stream = reader.flag("stream")
    options = reader.mapping("stream_options")
    if options is not None and not stream:
        raise bad("stream_options needs stream: true", "stream_options")
    known = ("include_usage", "continuous_usage_stats", "include_speculation", "include_obfuscation")
    streaming = Reader(options or {}, known, "stream_options")
    request_id = reader.text("request_id")
    if request_id is not None and not REQUEST_ID.fullmatch(request_id):
        raise bad("request_id must be 1 to 128 of A-Z a-z 0-9 . _ -", "request_id")
    include_usage = streaming.flag("include_usage")
    job: dict[str, Any] = {
        "kind": kind or shape,
        "format_field": "response_format" if "response_format" in reader.values else "structured_outputs",
        "model": model,
        "stream": stream,
        "include_usage": include_usage,
        "continuous_usage": include_usage and streaming.flag("continuous_usage_stats"),
        "include_speculation": streaming.flag("include_speculation"),
        "token_ids": reader.flag("return_token_ids"),
        "tokens_as_ids": reader.flag("return_tokens_as_token_ids"),
        "request_id": request_id,
        "timeout_s": reader.number("timeout_s", 0.001, 86_400),
    }
    if shape == "chat":
        tools = _tools(reader)
        form = _form(reader)
        if tools is not None and (form is not None or "structured_outputs" in reader.values):
            raise bad(
                "tools and a form of the answer exclude each other; leave one out, or set tool_choice to 'none'",
                "tools",
                "unsupported_parameter",
            )
        return Job(**job, params=_chat_params(reader, form), tools=tools, **_chat(reader))
    prompts = _prompts(reader)
    params = _completion_params(reader)
    if len(prompts) * params.n > MAX_CHOICES * 4:
        raise bad(f"{len(prompts)} prompts times n {params.n} are more than {MAX_CHOICES * 4} texts", "n")
    return Job(
        **job,
        prompts=prompts,
        params=params,
        echo=reader.flag("echo"),
        add_special_tokens=reader.flag("add_special_tokens", True),
    )


def _form(reader: Reader) -> StructuredOutputs | None:
    """Return what ``response_format`` asks for."""
    wanted = reader.mapping("response_format")
    if wanted is None or wanted.get("type") == "text":
        return None
    if "structured_outputs" in reader.values:
        raise bad("response_format and structured_outputs exclude each other", "response_format")
    if wanted.get("type") == "json_object":
        Reader(wanted, ("type",), "response_format")
        return StructuredOutputs(json_object=True)
    if wanted.get("type") != "json_schema":
        raise bad(
            f"response_format.type must be text, json_object or json_schema, got {shown(wanted.get('type'))}",
            "response_format",
        )
    outer = Reader(wanted, ("type", "json_schema"), "response_format")
    given = Reader(
        outer.mapping("json_schema") or {},
        ("name", "description", "schema", "strict"),
        "response_format.json_schema",
    )
    given.text("name"), given.text("description"), given.flag("strict")
    return schema_form(given.mapping("schema"), "response_format.json_schema.schema")


def schema_form(schema: dict[str, Any] | None, name: str) -> StructuredOutputs:
    """Return the form that a JSON schema asks for. Raises ApiError when there is none."""
    if not schema:
        raise bad(f"{name} must be a JSON schema that is not empty", name)
    return StructuredOutputs(json=schema)  # type: ignore[arg-type]  # it is normalised there


def _tools(reader: Reader) -> ToolUse | None:
    """Return the functions that the answer may call; None when there are none, or tool_choice is "none"."""
    given, choice = reader.values.get("tools"), reader.values.get("tool_choice")
    parallel = reader.flag("parallel_tool_calls", True)
    if given is None:
        if choice not in (None, "none", "auto"):
            raise bad("tool_choice without tools; leave it out", "tool_choice")
        return None
    if not isinstance(given, list) or not 0 < len(given) <= MAX_TOOLS:
        raise bad(f"tools must be a list of 1 to {MAX_TOOLS} functions; leave it out for none", "tools")
    tools = tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(given))
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise bad("two tools have the same name", "tools")
    if isinstance(choice, dict):
        named = Reader(choice, ("type", "function"), "tool_choice")
        wanted = Reader(named.mapping("function") or {}, ("name",), "tool_choice.function").text("name")
        if choice.get("type") != "function" or wanted not in names:
            raise bad(
                f"tool_choice names no tool: {shown(wanted)}{nearest(str(wanted), names)}", "tool_choice"
            )
        chosen = tuple(tool for tool in tools if tool.name == wanted)
        return ToolUse(given, chosen, forced=True, parallel=False)
    if choice not in (None, "none", "auto", "required"):
        raise bad(
            f"tool_choice must be none, auto, required or the name of a function, got {shown(choice)}",
            "tool_choice",
        )
    return None if choice == "none" else ToolUse(given, tools, choice == "required", parallel)


def _tool(value: object, name: str) -> Tool:
    if not isinstance(value, dict):
        raise bad(f"{name} must be an object, got {shown(value)}", name)
    if value.get("type") != "function":
        raise bad(f"{name}.type must be 'function', got {shown(value.get('type'))}", f"{name}.type")
    tool = Reader(value, ("type", "function"), name)
    function = Reader(
        tool.mapping("function") or {}, ("name", "description", "parameters", "strict"), f"{name}.function"
    )
    called = function.text("name")
    if not called or not TOOL_NAME.fullmatch(called):
        raise bad(f"{name}.function.name must be 1 to 64 of A-Z a-z 0-9 _ -", f"{name}.function.name")
    function.text("description"), function.flag("strict")
    return Tool(called, function.mapping("parameters") or {"type": "object", "properties": {}})


def _chat(reader: Reader) -> dict[str, Any]:
    messages = reader.values.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad("messages must be a list of at least one message", "messages")
    if len(messages) > MAX_MESSAGES:
        raise bad(f"{len(messages)} messages are more than {MAX_MESSAGES}", "messages")
    for i, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("system", "developer", "user", "assistant", "tool"):
            raise bad(
                f"messages[{i}].role must be system, developer, user, assistant or tool, got {shown(role)}",
                f"messages[{i}].role",
            )
        content = message.get("content")
        if not (isinstance(content, str | list) or (role == "assistant" and content is None)):
            raise bad(
                f"messages[{i}].content must be a string or a list of text parts, got {shown(content)}",
                f"messages[{i}].content",
            )
    return {
        "messages": [
            {**m, "content": m.get("content") if m.get("content") is not None else ""} for m in messages
        ],
        "generation_prompt": reader.flag("add_generation_prompt", True),
        "template_kwargs": reader.mapping("chat_template_kwargs"),
    }


def _prompts(reader: Reader) -> tuple[Prompt, ...]:
    prompt = reader.values.get("prompt")
    if isinstance(prompt, str):
        return (prompt,)
    if not isinstance(prompt, list) or not prompt:
        raise bad("prompt must be a string, a list of token ids, or a list of either", "prompt")
    prompts = [prompt] if not isinstance(prompt[0], str | list) else prompt
    if len(prompts) > MAX_PROMPTS:
        raise bad(f"{len(prompts)} prompts are more than {MAX_PROMPTS}", "prompt")
    for one in prompts:
        is_ids = isinstance(one, list) and all(type(token) is int for token in one)
        if not (isinstance(one, str) or is_ids):
            raise bad(f"a prompt must be a string or a list of token ids, got {shown(one)}", "prompt")
    return tuple(prompts)


def _chat_params(reader: Reader, form: StructuredOutputs | None) -> SamplingParams:
    top = reader.whole("top_logprobs", 0, MAX_LOGPROBS)
    wanted = reader.flag("logprobs")
    if top and not wanted:
        raise bad("top_logprobs needs logprobs: true", "top_logprobs")
    limit = reader.whole("max_completion_tokens", 1, 2**31 - 1) or reader.whole("max_tokens", 1, 2**31 - 1)
    return _params(reader, limit, (top or 0) if wanted else None, form)


def _completion_params(reader: Reader) -> SamplingParams:
    logprobs = reader.whole("logprobs", 0, MAX_LOGPROBS)
    best_of = reader.whole("best_of", 1, MAX_CHOICES)
    if best_of is not None and best_of != (reader.whole("n", 1, MAX_CHOICES) or 1):
        raise bad("best_of other than n is not supported", "best_of", "unsupported_parameter")
    if reader.text("suffix"):
        raise bad("suffix is not supported; leave it out", "suffix", "unsupported_parameter")
    limit = reader.whole("max_tokens", 1, 2**31 - 1)
    limit = DEFAULT_COMPLETION_TOKENS if limit is None else limit
    return _params(reader, limit, logprobs, _form(reader), reader.flag("echo"))


def _params(
    reader: Reader,
    max_tokens: int | None,
    logprobs: int | None,
    form: StructuredOutputs | None,
    echo: bool = False,
) -> SamplingParams:
    reader.whole("n", 1, MAX_CHOICES)
    stop = reader.values.get("stop")
    if isinstance(stop, list) and len(stop) > MAX_STOPS:
        raise bad(f"{len(stop)} stop strings are more than {MAX_STOPS}", "stop")
    prompt_logprobs = reader.whole("prompt_logprobs", 0, MAX_LOGPROBS)
    if echo and logprobs is not None:
        prompt_logprobs = logprobs
    if prompt_logprobs is not None and reader.flag("stream") and not echo:
        raise bad("prompt_logprobs are not supported in a stream", "prompt_logprobs", "unsupported_parameter")
    values = {name: value for name, value in reader.values.items() if name in SAMPLED}
    for name in ("top_k", "seed", "min_tokens", "n"):
        if isinstance(values.get(name), float) and values[name].is_integer():
            values[name] = int(values[name])
    if form is not None:
        values["structured_outputs"] = form
    return SamplingParams.from_mapping(
        {**values, "max_tokens": max_tokens, "logprobs": logprobs, "prompt_logprobs": prompt_logprobs}
    )
