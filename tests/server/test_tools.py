"""Calls of functions: read from texts however they are cut, written by grammars, and over HTTP."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import openai
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.llm import LLM
from sonoran.models.tokenizer.tokenizer import Tokenizer
from sonoran.server.tools import Call, Format, Tool, ToolReader
from tests.server.running import NAME, Running, running

TOOLS = [Tool("add", {"type": "object"}), Tool("find", {"type": "object"})]
ADD = '{"name": "add", "arguments": {"a": 1}}'
FIND = '{"name": "find", "arguments": {"text": "</tool_call> \\" {"}}'
OTHER = '<tool_call>{"name": "other", "arguments": {}}</tool_call>'
HERMES = [
    ("", "", []),
    ("just text < and <tool", "just text < and <tool", []),
    (f"<tool_call>\n{ADD}\n</tool_call>", "", [("add", {"a": 1})]),
    (f"I see. \n<tool_call>{ADD}</tool_call>\n<tool_call>\n{FIND}\n</tool_call>\n", "I see.",
     [("add", {"a": 1}), ("find", {"text": '</tool_call> " {'})]),
    (f"<tool_call>{ADD}", "", [("add", {"a": 1})]),
    (f"a\n <tool_call>{ADD[:-1]}</tool_call> b", f"a\n <tool_call>{ADD[:-1]}</tool_call> b", []),
    ("x <tool_call>no", "x <tool_call>no", []),
    (OTHER, OTHER, []),
    (f"<tool_call>bad</tool_call>\n<tool_call>{ADD}</tool_call>", "<tool_call>bad</tool_call>", [("add", {"a": 1})]),
    (f"<tool_call>{ADD}</tool_call> and then", "and then", [("add", {"a": 1})]),
]  # fmt: skip
LLAMA = [
    ("", "", []),
    ("  plain { text", "  plain { text", []),
    ('{"name": "add", "parameters": {"a": 1}}', "", [("add", {"a": 1})]),
    (' {"name": "add", "parameters": {"a": 1}}; \n{"name": "find", "parameters": {}}', "",
     [("add", {"a": 1}), ("find", {})]),
    ('{"name": "add", "parameters": {"a"', '{"name": "add", "parameters": {"a"', []),
    ('{"some": "json"}', '{"some": "json"}', []),
    ('{"name": "add", "parameters": {}} and', " and", [("add", {})]),
]  # fmt: skip
CASES: list[tuple[Format, str, str, list[tuple[str, object]]]] = [
    *(("hermes", *case) for case in HERMES),
    *(("llama3", *case) for case in LLAMA),
]


def read(form: Format, pieces: list[str]) -> tuple[str, list[tuple[str, object]]]:
    reader = ToolReader.of(form, TOOLS)
    items = [item for piece in pieces for item in reader.push(piece)] + reader.flush()
    text = "".join(item for item in items if isinstance(item, str))
    return text, [(item.name, json.loads(item.arguments)) for item in items if isinstance(item, Call)]


@pytest.mark.parametrize(("form", "text", "said", "calls"), CASES)
def test_what_is_said_and_what_is_called(
    form: Format, text: str, said: str, calls: list[tuple[str, object]]
) -> None:
    assert read(form, [text]) == (said, calls)
    assert read(form, list(text)) == (said, calls)
    for cut in range(len(text)):
        assert read(form, [text[:cut], text[cut:]]) == (said, calls)


PARTS = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        ADD,
        FIND,
        '{"name": "add", "parameters": {}}',
        ";",
        "\n",
        " ",
        "<",
        "tool",
        '"',
        "{",
        "a",
    ]
)


@given(form=st.sampled_from(["hermes", "llama3"]), parts=st.lists(PARTS, max_size=12), data=st.data())
def test_pieces_do_not_matter(form: Format, parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    assert read(form, pieces) == read(form, [text])


@given(text=st.text(alphabet="ab <>tool_call{}\n", max_size=40))
def test_a_text_without_calls_is_left_as_it_is(text: str) -> None:
    assert read("hermes", list(text)) == (text, [])


# ---- over HTTP

HERMES_TEMPLATE = (
    "{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}{% endif %}{% for m in messages %}"
    "{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}{% for c in m.tool_calls or [] %}"
    "{{ '<tool_call>' + ({'name': c.function.name, 'arguments': c.function.arguments} | tojson) + '</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA_TEMPLATE = (
    HERMES_TEMPLATE.replace("<tool_call>", "")
    .replace("</tool_call>", "")
    .replace("'arguments':", "'parameters':")
)
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["to", "world"]}},
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
OFFERED: list[Any] = [
    {"type": "function", "function": {"name": "is", "description": "d", "parameters": CITY}},
    {"type": "function", "function": {"name": "def", "parameters": NOTHING}},
]
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"


def with_template(llm: LLM, template: str) -> LLM:
    vocabulary = replace(llm.tokenizer._vocabulary, chat_templates={"default": template})
    llm.tokenizer = Tokenizer(llm.tokenizer._backend, vocabulary)
    return llm


@pytest.fixture(scope="module", params=["hermes", "llama3"])
def caller(request: pytest.FixtureRequest, pair: tuple[str, str]) -> Iterator[Running]:
    """A server in mode SD whose model has a template with tools."""
    speculative = {"method": "sd", "model": pair[1], "num_speculative_tokens": 3, "least_chance": 0.0}
    with LLM(pair[0], speculative_config=speculative, max_model_len=256, threads=1) as llm:
        template = HERMES_TEMPLATE if request.param == "hermes" else LLAMA_TEMPLATE
        with running(with_template(llm, template)) as server:
            yield server
        llm.check_invariants()


def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("temperature", [0, 1])
def test_required_calls_are_calls_streamed_or_not_with_and_without_a_draft(
    caller: Running, temperature: int
) -> None:
    fields: dict[str, Any] = {
        "model": NAME,
        "messages": MESSAGES,
        "tools": OFFERED,
        "tool_choice": "required",
    }
    fields |= {
        "temperature": temperature,
        "seed": 3,
        "max_completion_tokens": 150,
        "parallel_tool_calls": False,
    }
    with client(caller) as api:
        whole = api.chat.completions.create(**fields)
        plain = api.chat.completions.create(**fields, extra_body={"speculative": False})
        with api.chat.completions.stream(**fields) as stream:
            events = list(stream)
            streamed = stream.get_final_completion()
    choice = whole.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.id.startswith("call_")
    arguments = json.loads(call.function.arguments)
    assert arguments == {} if call.function.name == "def" else arguments["city"] in ("to", "world")
    for other in (plain, streamed):
        (again,) = other.choices[0].message.tool_calls or ()
        assert (again.type, again.function.name, again.function.arguments) == (  # type: ignore[union-attr]
            "function", call.function.name, call.function.arguments,
        )  # fmt: skip
        assert other.choices[0].finish_reason == "tool_calls"
    assert any(event.type == "tool_calls.function.arguments.done" for event in events)


def test_a_named_function_is_the_one_that_is_called(caller: Running) -> None:
    for name in ("is", "def"):
        choice = {"type": "function", "function": {"name": name}}
        body = caller.ask(CHAT, messages=MESSAGES, tools=OFFERED, tool_choice=choice, max_tokens=150, seed=1)
        (call,) = body["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == name


def test_several_calls_are_numbered(caller: Running) -> None:
    tools = OFFERED[1:]
    fields: dict[str, Any] = {
        "messages": MESSAGES,
        "tools": tools,
        "tool_choice": "required",
        "max_tokens": 200,
    }
    fields["logit_bias"] = {"10": 4, "59": 4}  # what stands between calls
    for seed in range(20):
        calls = caller.ask(CHAT, **fields, seed=seed)["choices"][0]["message"].get("tool_calls", [])
        if len(calls) > 1:
            break
    assert len({call["id"] for call in calls}) == len(calls) > 1
    parts = [c for chunk in caller.stream(CHAT, **fields, seed=seed) for c in chunk["choices"]]
    told = [call for part in parts for call in part["delta"].get("tool_calls", [])]
    assert [call["index"] for call in told] == [i for i in range(len(calls)) for _ in range(2)]
    for call, named, filled in zip(calls, told[::2], told[1::2], strict=True):
        assert named["function"] == {"name": call["function"]["name"], "arguments": ""}
        assert filled["function"] == {"arguments": call["function"]["arguments"]}


def test_results_of_calls_go_back_to_the_model(caller: Running) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "is", "arguments": '{"city": "to"}'}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    body = caller.ask(CHAT, messages=messages, tools=OFFERED, max_tokens=5, seed=1)
    assert body["choices"][0]["finish_reason"] in ("stop", "length", "tool_calls")
    assert (
        body["usage"]["prompt_tokens"]
        > caller.ask(CHAT, messages=MESSAGES, tools=OFFERED, max_tokens=5)["usage"]["prompt_tokens"]
    )


def test_auto_and_none_leave_the_text_as_it_is(caller: Running) -> None:
    fields: dict[str, Any] = {"messages": MESSAGES, "seed": 2, "max_tokens": 30, "tools": OFFERED}
    auto = caller.ask(CHAT, **fields)["choices"][0]["message"]
    parts = [c for chunk in caller.stream(CHAT, **fields, tool_choice="auto") for c in chunk["choices"]]
    assert (
        auto["content"] and "".join(part["delta"].get("content") or "" for part in parts) == auto["content"]
    )
    none = caller.ask(CHAT, **fields, tool_choice="none")
    bare = caller.ask(CHAT, messages=MESSAGES, seed=2, max_tokens=30)
    assert none["choices"] == bare["choices"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": []}, "tools", "1 to 128"),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name", "A-Z"),
        ({"tools": [{"type": "web"}]}, "tools[0].type", "function"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parametres": {}}}]},
         "tools[0].function.parametres", "did you mean 'parameters'"),
        ({"tools": OFFERED, "tool_choice": "any"}, "tool_choice", "required"),
        ({"tools": OFFERED, "tool_choice": {"type": "function", "function": {"name": "iz"}}},
         "tool_choice", "did you mean 'is'"),
        ({"tools": [OFFERED[0], OFFERED[0]]}, "tools", "same name"),
        ({"tool_choice": "required"}, "tool_choice", "without tools"),
        ({"tools": OFFERED, "response_format": {"type": "json_object"}}, "tools", "exclude"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "nothing"}}}],
          "tool_choice": "required"}, "tools", "nothing"),
    ],
)  # fmt: skip
def test_wrong_tools_are_refused(caller: Running, fields: dict[str, Any], param: str, words: str) -> None:
    status, body, _ = caller.call(CHAT, {"model": NAME, "messages": MESSAGES, **fields})
    assert (status, body["error"]["param"]) == (400, param)
    assert words in body["error"]["message"]


def test_a_model_without_tools_says_so(server: Running) -> None:
    with client(server) as api, pytest.raises(openai.BadRequestError, match="no place for tools"):
        api.chat.completions.create(model=NAME, messages=MESSAGES, tools=OFFERED)


# ---- the form of an answer


class City(pydantic.BaseModel):
    city: Literal["to", "world"]
    size: Literal[1, 2]


def test_answers_are_parsed_into_classes(server: Running) -> None:
    with client(server) as api:
        found = api.chat.completions.parse(
            model=NAME, messages=MESSAGES, response_format=City, seed=1, max_completion_tokens=90
        )
        asynchronous = asyncio.run(parsed_asynchronously(server))
    value = found.choices[0].message.parsed
    assert isinstance(value, City) and value == asynchronous


async def parsed_asynchronously(server: Running) -> City | None:
    async with (
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as api,
        api.chat.completions.stream(
            model=NAME, messages=MESSAGES, response_format=City, seed=1, max_completion_tokens=90
        ) as stream,
    ):
        return (await stream.get_final_completion()).choices[0].message.parsed


def test_the_form_is_a_matter_of_completions_too(server: Running) -> None:
    fields: dict[str, Any] = {"prompt": "a", "seed": 1, "max_tokens": 90}
    texts = [
        server.ask(**fields, structured_outputs={"choice": ["hello", "world"]}),
        server.ask(**fields, structured_outputs={"regex": "hello|world"}, speculative=False),
    ]
    assert all(text["choices"][0]["text"] in ("hello", "world") for text in texts)
    kind = {"type": "json_schema", "json_schema": {"name": "n", "schema": CITY, "strict": True}}
    assert json.loads(server.ask(**fields, response_format=kind)["choices"][0]["text"])["city"] in (
        "to",
        "world",
    )


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "json"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "not empty"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nothing"}}}},
         "response_format", "nothing"),
        ({"structured_outputs": {"regex": "a("}}, "structured_outputs", "unclosed group"),
        ({"structured_outputs": {"rgx": "a"}}, "structured_outputs", "did you mean 'regex'"),
        ({"structured_outputs": {"regex": "a"}, "min_tokens": 3}, "min_tokens", "contradicts"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
         "response_format", "exclude"),
        ({"guided_json": {}}, "guided_json", "structured_outputs.json"),
    ],
)  # fmt: skip
def test_wrong_forms_are_refused(server: Running, fields: dict[str, Any], param: str, words: str) -> None:
    status, body, _ = server.call(CHAT, {"model": NAME, "messages": MESSAGES, **fields})
    assert (status, body["error"]["param"]) == (400, param), body
    assert words in body["error"]["message"]
