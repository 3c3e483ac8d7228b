"""OpenAI's own client: synchronous, asynchronous, streams, and the exceptions that it makes of errors."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.server.running import NAME, Running

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_chat_and_its_stream_say_the_same(server: Running) -> None:
    with client(server) as api:
        whole = api.chat.completions.create(
            model=NAME, messages=MESSAGES, temperature=0.8, seed=4, max_completion_tokens=20, logprobs=True
        )
        parts = list(
            api.chat.completions.create(
                model=NAME,
                messages=MESSAGES,
                temperature=0.8,
                seed=4,
                max_completion_tokens=20,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"speculative": False},
            )
        )
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == whole.choices[0].message.content
    assert whole.choices[0].logprobs is not None and whole.choices[0].logprobs.content is not None
    assert whole.usage is not None and parts[-1].usage is not None
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert parts[0].choices[0].delta.role == "assistant"


def test_completions_models_and_several_choices(server: Running) -> None:
    with client(server) as api:
        found = api.completions.create(model=NAME, prompt=["ab", "cd"], n=2, max_tokens=4, seed=1, echo=True)
        assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
        assert found.choices[2].text.startswith("cd")
        assert [model.id for model in api.models.list()] == [NAME]
        assert api.models.retrieve(NAME).owned_by == "sonoran"


def test_asynchronous_streams_can_be_left(server: Running) -> None:
    async def use() -> int:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as api:
            stream = await api.chat.completions.create(
                model=NAME, messages=MESSAGES, stream=True, extra_body={"ignore_eos": True}
            )
            async for _ in stream:
                break
            await stream.close()
            answers = await asyncio.gather(
                *(api.completions.create(model=NAME, prompt="x", max_tokens=5, seed=i) for i in range(8))
            )
            return len({answer.id for answer in answers})

    assert asyncio.run(use()) == 8


def test_errors_become_the_exceptions_that_programs_catch(server: Running) -> None:
    with client(server) as api:
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            api.completions.create(model="gpt", prompt="a")
        with pytest.raises(openai.BadRequestError) as refused:
            api.completions.create(model=NAME, prompt="a", extra_body={"top_kk": 1})
        assert refused.value.param == "top_kk" and refused.value.code == "unknown_parameter"
