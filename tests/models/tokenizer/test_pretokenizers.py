"""How texts are cut into words: the published patterns, and what they do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.errors import ModelError
from sonoran.models.tokenizer.gguf_source import LLAMA3_PATTERN, PIPELINES, QWEN2_PATTERN, byte_pipeline
from sonoran.models.tokenizer.vocabulary import byte_alphabet, token_bytes


def words(pre: str, text: str) -> list[str]:
    cut = byte_pipeline(pre).pre_tokenizer.pre_tokenize_str(text)
    return [token_bytes(word, "byte_level").decode() for word, _ in cut]


def test_patterns_are_the_published_ones() -> None:
    assert QWEN2_PATTERN == (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    assert LLAMA3_PATTERN == (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("qwen2", ["I", "'LL", " pay", " ", "1", "2", "3", "4", "!!\n\n", "  ", " def", "(x"]),
        ("llama-bpe", ["I", "'LL", " pay", " ", "123", "4", "!!\n\n", "  ", " def", "(x"]),
        ("gpt-2", ["I", "'", "LL", " pay", " 1234", "!!", "\n\n  ", " def", "(", "x"]),
        ("smollm", ["I", "'", "LL", " pay", " ", "1", "2", "3", "4", "!!", "\n\n  ", " def", "(", "x"]),
        ("dbrx", ["I", "'LL", " pay", " ", "123", "4", "!!\n\n", "  ", " def", "(x"]),
        ("qwen35", ["I", "'LL", " pay", " ", "1", "2", "3", "4", "!!\n\n", "  ", " def", "(x"]),
        ("seed-coder", ["I", "'LL", " pay", " ", "1", "2", "3", "4", "!!", "\n\n", "  ", " def", "(x"]),
        ("gpt-4o", ["I'LL", " pay", " ", "123", "4", "!!\n\n", "  ", " def", "(x"]),
        ("tekken", ["I", "'LL", " pay", " ", "1", "2", "3", "4", "!!\n\n", "  ", " def", "(x"]),
        ("deepseek-v3", ["I", "'LL", " pay", " ", "123", "4", "!!\n\n", "  ", " def", "(x"]),
        ("deepseek-llm", ["I", "'", "LL", " pay", " ", "1234", "!!", "\n", "\n", "  ", " def", "(", "x"]),
        (
            "deepseek-coder",
            ["I", "'", "LL", " pay", " ", "1", "2", "3", "4", "!!", "\n", "\n", "  ", " def", "(", "x"],
        ),
    ],
)
def test_words_of_a_text(pre: str, expected: list[str]) -> None:
    assert words(pre, "I'LL pay 1234!!\n\n   def(x") == expected


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("llama-bpe", ["getHTTPResponse", "Ünder", "/path"]),
        ("tekken", ["get", "HTTPResponse", "Ünder", "/path"]),
        ("gpt-4o", ["get", "HTTPResponse", "Ünder", "/path"]),
    ],
)
def test_words_in_mixed_case(pre: str, expected: list[str]) -> None:
    assert [word for text in ("getHTTPResponse", "Ünder/path") for word in words(pre, text)] == expected


@pytest.mark.parametrize("pre", PIPELINES)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_words_join_to_the_text(pre: str, text: str) -> None:
    assert "".join(words(pre, text)) == text


def test_only_qwen2_normalises_and_only_llama3_ignores_merges_and_adds_bos() -> None:
    assert byte_pipeline("qwen2").normalizer.normalize_str("e\u0301") == "\u00e9"
    assert [byte_pipeline(pre).normalizer for pre in ("llama-bpe", "smollm", "gpt-2")] == [None] * 3
    flags = {pre: byte_pipeline(pre) for pre in ("qwen2", "llama-bpe", "smollm", "gpt-2")}
    assert [pre for pre, p in flags.items() if p.ignore_merges] == ["llama-bpe"]
    assert [pre for pre, p in flags.items() if p.add_bos] == ["llama-bpe"]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(
        ModelError, match=r"x\.gguf: pre-tokenizer 'falcon' is not supported; supported: gpt-2, "
    ):
        byte_pipeline("falcon", "x.gguf")


@pytest.mark.parametrize(
    ("names", "like"),
    [
        (("falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "llama3", "llama-v3"), "llama-bpe"),
        (("kormo", "f2llmv2", "megrez", "deepseek-r1-qwen"), "qwen2"),
        (("phi-2", "a.x-4.0", "mellum", "gigachat", "exaone4", "mpt", "olmo"), "gpt-2"),
        (("starcoder", "refact", "minerva-7b"), "smollm"),
        (("llama4", "kanana2"), "gpt-4o"),
        (("hunyuan-dense",), "deepseek-v3"),
    ],
)
def test_names_that_llama_cpp_treats_alike(names: tuple[str, ...], like: str) -> None:
    text = "I'LL pay 1234!!\n\n   def(x"
    for name in names:
        assert words(name, text) == words(like, text)
        assert byte_pipeline(name).ignore_merges == byte_pipeline(like).ignore_merges


def test_byte_alphabet_spells_every_byte_once() -> None:
    alphabet = byte_alphabet()
    assert len(set(alphabet)) == 256
    assert all(character.isprintable() and not character.isspace() for character in alphabet)
    assert token_bytes("".join(alphabet), "byte_level") == bytes(range(256))
    assert alphabet[ord(" ")] == "Ġ"
