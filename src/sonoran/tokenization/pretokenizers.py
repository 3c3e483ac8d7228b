"""Pre-tokenizers of byte-level vocabularies, as published with the models, by their names in GGUF files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

from sonoran.errors import ModelError, nearest

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True, slots=True)
class BytePipeline:
    """Steps before the merges; ``ignore_merges`` takes a word that is a token as it is."""

    normalizer: Any
    pre_tokenizer: Any
    ignore_merges: bool = False
    add_bos: bool = False  # when the file does not say


def _split(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _gpt2() -> BytePipeline:
    return BytePipeline(None, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))


def _llama3() -> BytePipeline:
    return BytePipeline(None, _split(LLAMA3_PATTERN), ignore_merges=True, add_bos=True)


def _qwen2() -> BytePipeline:
    return BytePipeline(normalizers.NFC(), _split(QWEN2_PATTERN))


def _smollm() -> BytePipeline:
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return BytePipeline(None, pre_tokenizers.Sequence([digits, words]))


_PIPELINES = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "llama-bpe": _llama3,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
    "smollm": _smollm,
}


def byte_pipeline(name: str) -> BytePipeline:
    """Return the steps for ``tokenizer.ggml.pre``; raise ModelError for a name that is not known."""
    if name not in _PIPELINES:
        raise ModelError(f"unsupported pre-tokenizer {name!r}{nearest(name, _PIPELINES)}")
    return _PIPELINES[name]()
