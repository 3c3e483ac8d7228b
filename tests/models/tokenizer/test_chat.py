"""Chat templates: what Hugging Face renders, and what the sandbox forbids."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sonoran.errors import ConfigError, ModelError
from sonoran.models.tokenizer import Tokenizer
from sonoran.models.tokenizer.chat import render_chat
from tests.models.tokenizer.vocabularies import byte_level
from tests.tiny_tokenizer import SPECIALS, tiny_tokenizer, write_tokenizer

MESSAGES = [
    {"role": "system", "content": "Be <brief> & kind."},
    {"role": "user", "content": "héllo"},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "again"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "a < b & 'é'", "parameters": {}}}]
TEMPLATE = """
{%- if tools %}
    {{- bos_token + (tools | tojson) + '\\n' }}
{%- endif %}
{% for message in messages %}
    {% if message.role == 'system' %}
{{ message.content | trim }}
        {% continue %}
    {% endif %}
  {%- set ns = namespace(last=loop.last) %}
    {%- generation %}[{{ message['role'] }}] {{ message.content }}{% if ns.last %}!{% endif %}
{% endgeneration %}
{% endfor %}
{%- if add_generation_prompt %}{{ '<' + mood | default('calm') + '>' }}{% endif %}
"""


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("prompt", [False, True])
def test_rendering_is_that_of_transformers(tools: Any, prompt: bool) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    [expected], _ = utils.render_jinja_template(
        conversations=[MESSAGES],
        tools=tools,
        chat_template=TEMPLATE,
        add_generation_prompt=prompt,
        bos_token="<s>",
    )
    got = render_chat(TEMPLATE, MESSAGES, tools, prompt, {"bos_token": "<s>"})
    assert got == expected
    assert ("a < b & 'é'" in got) == (tools is not None)


def test_helpers_that_templates_expect() -> None:
    before = datetime.now()
    shown = datetime.fromisoformat(render_chat("{{ strftime_now('%Y-%m-%dT%H:%M:%S.%f') }}", MESSAGES))
    assert before <= shown <= datetime.now()
    assert render_chat("{{ mood }}{{ tools is none }}", MESSAGES, variables={"mood": "x"}) == "xTrue"
    compact = "{{ {'b': 1, 'a': '<'} | tojson(separators=(',', ':'), sort_keys=true) }}"
    assert render_chat(compact, MESSAGES) == '{"a":"<","b":1}'
    with pytest.raises(ConfigError, match="refuses the messages: roles must alternate"):
        render_chat("{{ raise_exception('roles must alternate') }}", MESSAGES)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'user'}) }}",
        "{{ cycler.__init__.__globals__.os.getcwd() }}",
        "{{ strftime_now.__globals__.keys() }}",
    ],
)
def test_the_sandbox_holds(template: str) -> None:
    with pytest.raises(ConfigError, match="refuses the messages"):
        render_chat(template, MESSAGES)
    assert MESSAGES[0]["role"] == "system"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message, got none"),
        (["hello"], "message 0 must be a mapping with a 'role', got 'hello'"),
        ([MESSAGES[0], {"content": "x"}], "message 1 must be a mapping with a 'role'"),
        ([{"role": 3, "content": "x"}], "message 0"),
    ],
)
def test_messages_are_checked(messages: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        render_chat("{{ messages | length }}", messages)


def test_broken_templates_and_failing_ones() -> None:
    with pytest.raises(ModelError, match=r"not valid \(line 2\)"):
        render_chat("a\n{% if %}", MESSAGES)
    with pytest.raises(ConfigError, match="refuses the messages"):
        render_chat("{{ messages[0].content + 1 }}", MESSAGES)


def test_encode_chat_gives_the_special_tokens_once() -> None:
    tiny = tiny_tokenizer()
    end, start, stop = (tiny.id(name) for name in SPECIALS)
    tokenizer = Tokenizer.from_gguf(byte_level(bos_token_id=end, add_bos_token=True))
    ids = tokenizer.encode_chat([{"role": "user", "content": "hello"}])
    assert ids.count(end) == 0
    assert [i for i in ids if i in (start, stop)] == [start, stop, start]
    assert tokenizer.decode(ids, skip_special_tokens=False) == (
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )
    closed = tokenizer.render_chat([{"role": "user", "content": "hello"}], add_generation_prompt=False)
    assert closed == "<|im_start|>user\nhello<|im_end|>\n"


def test_template_variables_tokens_and_the_tool_template(tmp_path: Path) -> None:
    metadata = byte_level(bos_token_id=0)
    metadata["tokenizer.chat_template"] = "{{ eos_token }}{{ mood }}"
    metadata["tokenizer.chat_template.tool_use"] = "T{{ tools | length }}"
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.render_chat(MESSAGES, template_kwargs={"mood": "calm"}) == "<|im_end|>calm"
    assert tokenizer.render_chat(MESSAGES, tools=TOOLS) == "T1"

    write_tokenizer(tmp_path, 64)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.from_directory(tmp_path).render_chat(MESSAGES) == "D"
    assert Tokenizer.from_directory(tmp_path).render_chat(MESSAGES, tools=TOOLS) == "T"
    (tmp_path / "chat_template.jinja").write_text("J{{ eos_token }}")
    assert Tokenizer.from_directory(tmp_path).render_chat(MESSAGES) == "J<|im_end|>"


def test_without_a_template_the_error_says_what_to_do() -> None:
    metadata = byte_level()
    del metadata["tokenizer.chat_template"]
    tokenizer = Tokenizer.from_gguf(metadata)
    assert not tokenizer.has_chat_template
    with pytest.raises(ConfigError, match="no chat template"):
        tokenizer.encode_chat(MESSAGES)
    assert tokenizer.encode_prompt("hello") == tokenizer.encode("hello")
    with pytest.raises(
        ConfigError, match="a system message needs a chat, and the model has no chat template"
    ):
        tokenizer.encode_prompt("hello", system="be kind")


def test_a_prompt_is_a_chat_where_there_is_a_template() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    user, system = {"role": "user", "content": "hello"}, {"role": "system", "content": "be kind"}
    assert tokenizer.encode_prompt("hello") == tokenizer.encode_chat([user])
    assert tokenizer.encode_prompt("hello", system="be kind") == tokenizer.encode_chat([system, user])
    assert tokenizer.encode_prompt("hello", chat=False) == tokenizer.encode("hello")
    with pytest.raises(ConfigError, match="not encoded as a chat"):
        tokenizer.encode_prompt("hello", system="be kind", chat=False)
