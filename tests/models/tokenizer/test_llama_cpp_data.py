"""Token ids and chat texts as llama.cpp's own tests and Hugging Face's code have them, on real vocabularies."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest

from sonoran.errors import SonoranError
from sonoran.models.gguf_reader import read_gguf
from sonoran.models.tokenizer.chat import render_chat
from sonoran.models.tokenizer.tokenizer import Tokenizer
from tests.models.tokenizer.llama_cpp_data import models

SEPARATOR = "\n__ggml_vocab_test__\n"
VOCABULARIES = (
    "deepseek-coder", "deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact",
    "starcoder",
)  # fmt: skip
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Where."}},
            "required": ["city"],
        },
    },
}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "one turn": ([{"role": "user", "content": "Hi, what's up?"}], None),
    "system": ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], None),
    "turns": (
        [
            {"role": "user", "content": "2 + 2?"},
            {"role": "assistant", "content": "4"},
            {"role": "user", "content": "And\n\n<b>3 & 3</b>?"},
        ],
        None,
    ),
    "tools": ([{"role": "user", "content": "Weather in Bern?"}], [WEATHER]),
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_texts_become_the_expected_ids(name: str) -> None:
    file = models() / f"ggml-vocab-{name}.gguf"
    tokenizer = Tokenizer.from_gguf(read_gguf(file)[0], str(file))
    texts = file.with_name(f"{file.name}.inp").read_text(encoding="utf-8").split(SEPARATOR)
    lines = file.with_name(f"{file.name}.out").read_text(encoding="utf-8").split("\n")
    expected = [[int(number) for number in line.split()] for line in lines]
    pairs = list(zip(texts, expected, strict=False))
    assert len(pairs) >= 46
    if name.startswith(
        "qwen"
    ):  # llama.cpp leaves composed letters in parts, where Qwen's tokenizer joins them
        pairs = [(text, ids) for text, ids in pairs if unicodedata.is_normalized("NFC", text)]
        assert len(pairs) >= 46
    assert [(text, tokenizer.encode(text, add_special_tokens=False)) for text, _ in pairs] == pairs


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_chats_are_rendered_as_by_transformers(name: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    messages, tools = CONVERSATIONS[name]
    files = sorted(models().glob("*.jinja"))
    assert len(files) >= 60
    same = 0
    for file in files:
        template = file.read_text(encoding="utf-8")
        try:
            (expected,), _ = utils.render_jinja_template(
                [messages], tools=tools, chat_template=template, add_generation_prompt=True, **TOKENS
            )
        except Exception:  # whatever a template refuses with
            expected = None
        try:
            text = render_chat(template, messages, tools, True, TOKENS)
        except SonoranError:
            text = None
        if "strftime_now" not in template:  # a minute may pass
            assert (file.name, text) == (file.name, expected)
        same += text is not None
    assert same >= 0.8 * len(files)
