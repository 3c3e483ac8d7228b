"""The Responses interface: documents, events, calls, and what needs a memory."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest

from sonoran.llm import LLM
from tests.server.running import NAME, Running, running
from tests.server.test_tools import HERMES_TEMPLATE, client, with_template

PATH = "/v1/responses"
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["to", "world"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "name": "is", "parameters": CITY, "strict": True}


@pytest.fixture(scope="module")
def caller(pair: tuple[str, str]) -> Iterator[Running]:
    with (
        LLM(pair[0], max_model_len=256, threads=1) as llm,
        running(with_template(llm, HERMES_TEMPLATE)) as server,
    ):
        yield server


def test_a_response_says_what_a_chat_says(server: Running) -> None:
    fields: dict[str, Any] = {"temperature": 0.8, "seed": 4}
    chat = server.ask(
        "/v1/chat/completions",
        messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        max_tokens=20,
        **fields,
    )
    with client(server) as api:
        found = api.responses.create(
            model=NAME,
            instructions="be brief",
            input="hi",
            max_output_tokens=20,
            temperature=0.8,
            extra_body={"seed": 4},
        )
        parts = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
        again = api.responses.create(
            model=NAME,
            instructions="be brief",
            input=parts,  # type: ignore[arg-type]
            max_output_tokens=20,
            temperature=0.8,
            extra_body={"seed": 4, "speculative": False},
        )
    assert found.output_text == again.output_text == chat["choices"][0]["message"]["content"]
    length = chat["choices"][0]["finish_reason"] == "length"
    assert found.status == ("incomplete" if length else "completed")
    assert found.usage is not None and found.usage.output_tokens == chat["usage"]["completion_tokens"]
    assert found.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert found.id.startswith("resp_") and found.store is False


def check_events(events: list[Any]) -> Any:
    """Events are numbered, begin and end as they should, and add up to the response, which is returned."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in ("response.completed", "response.incomplete")
    response = events[-1]["response"]
    for index, item in enumerate(response["output"]):
        own = [event for event in events if event.get("output_index") == index]
        assert own[0]["type"] == "response.output_item.added"
        assert own[-1]["type"] == "response.output_item.done" and own[-1]["item"] == item
        told = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        assert told == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
    return response


@pytest.mark.parametrize("limit", [1, 40])
def test_events_add_up_to_the_response(server: Running, limit: int) -> None:
    fields: dict[str, Any] = {"input": "hi", "seed": 1, "max_output_tokens": limit}
    response = check_events(server.stream(PATH, **fields))
    whole = server.ask(PATH, **fields)
    assert [i["content"] for i in response["output"]] == [i["content"] for i in whole["output"]]
    assert response["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_streams_and_classes_of_openais_client(server: Running) -> None:
    class City(pydantic.BaseModel):
        city: Literal["to", "world"]

    fields: dict[str, Any] = {"model": NAME, "input": "hi", "max_output_tokens": 40, "temperature": 0}
    fields["extra_body"] = {"structured_outputs": {"choice": ["hello world", "to the world"]}}

    async def use() -> str:
        async with (
            openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as api,
            api.responses.stream(**fields) as stream,
        ):
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert "response.output_text.delta" in kinds
        return final.output_text

    with client(server) as api:
        plain = api.responses.create(**fields)
        parsed = api.responses.parse(
            model=NAME, input="hi", text_format=City, max_output_tokens=80, extra_body={"seed": 1}
        )
    assert isinstance(parsed.output_parsed, City)
    assert asyncio.run(use()) == plain.output_text


def test_functions_are_called_and_their_results_go_back(caller: Running) -> None:
    fields: dict[str, Any] = {
        "tools": [TOOL],
        "tool_choice": "required",
        "seed": 1,
        "parallel_tool_calls": False,
    }
    with client(caller) as api:
        seed = {"seed": 1}
        found = api.responses.create(
            model=NAME,
            input="hi",
            tools=[TOOL],
            tool_choice="required",
            parallel_tool_calls=False,
            extra_body=seed,
        )
        (call,) = found.output
        assert call.type == "function_call" and call.name == "is"
        assert json.loads(call.arguments)["city"] in ("to", "world")
        conversation: list[Any] = [
            {"role": "user", "content": "hi"},
            call.model_dump(),
            {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
        ]
        after = api.responses.create(model=NAME, input=conversation, tools=[TOOL], max_output_tokens=5)
    assert after.usage is not None and found.usage is not None
    assert after.usage.input_tokens > found.usage.input_tokens
    streamed = check_events(caller.stream(PATH, input="hi", **fields))
    assert streamed["output"][0]["arguments"] == call.arguments


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"store": True}, "store", "not kept"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "whole conversation"),
        ({"conversation": "c"}, "conversation", "whole conversation"),
        ({"background": True}, "background", "stream it"),
        ({"truncation": "auto"}, "truncation", "disabled"),
        ({"include": ["a"]}, "include", "leave it out"),
        ({"imput": "a"}, "imput", "did you mean 'input'"),
        ({"input": []}, "input", "at least one"),
        ({"input": [5]}, "input[0]", "object"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "function_call"),
        ({"input": [{"role": "robot", "content": "a"}]}, "input", "robot"),
        ({"text": {"format": {"type": "json"}}}, "text.format", "json_schema"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "function"),
        ({"max_output_tokens": 0}, "max_output_tokens", "from 1"),
        ({"temperature": 9**9}, "temperature", "nearest"),
    ],
)
def test_what_cannot_be_is_refused(server: Running, fields: dict[str, Any], param: str, words: str) -> None:
    status, body, _ = server.call(PATH, {"model": NAME, "input": "a", **fields})
    assert (status, body["error"]["param"]) == (400, param), body
    assert words in body["error"]["message"]


def test_odd_values_are_never_the_servers_fault(server: Running) -> None:
    odd: list[Any] = [
        True,
        -1,
        2**70,
        "",
        "x",
        [],
        [[]],
        {},
        {"type": 5},
        [{"type": "function"}],
        [None],
        "auto",
        0.5,
    ]
    names = [
        "input",
        "instructions",
        "text",
        "tools",
        "tool_choice",
        "reasoning",
        "stream_options",
        "max_output_tokens",
        "stream",
    ]
    for name, value in itertools.product(names, odd):
        status, body, _ = server.call(
            PATH, {"model": NAME, "input": "a", "max_output_tokens": 1, name: value}
        )
        assert status in (200, 400), (name, value, body)
    for key, value in itertools.product(
        ["type", "role", "content", "call_id", "name", "arguments", "output"], odd
    ):
        for kind in ("message", "function_call", "function_call_output"):
            item = {
                "type": kind,
                "role": "user",
                "content": "a",
                "call_id": "a",
                "name": "a",
                "arguments": "{}",
                key: value,
            }
            status, body, _ = server.call(PATH, {"model": NAME, "input": [item], "max_output_tokens": 1})
            assert status in (200, 400), (item, body)
