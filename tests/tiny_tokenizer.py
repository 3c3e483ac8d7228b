"""A byte-level BPE tokenizer of some 300 tokens, as GGUF metadata and as the files of a model directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

WORDS = (" the", "ing", " def", " return", "hello", " world", " to", " and", " is", "():", "    ")
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class TinyTokenizer:
    """Token strings in byte-level spelling (specials last), and the merges, highest rank first."""

    tokens: tuple[str, ...]
    merges: tuple[str, ...]

    def id(self, token: str) -> int:
        return self.tokens.index(token)


def byte_alphabet() -> list[str]:
    """The printable stand-in of every byte in GPT-2's byte-level spelling, by byte value."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def tiny_tokenizer() -> TinyTokenizer:
    """256 bytes, the merges that spell WORDS from left to right, then SPECIALS."""
    alphabet = byte_alphabet()
    tokens = list(alphabet)
    merges: list[str] = []
    for word in WORDS:
        letters = [alphabet[byte] for byte in word.encode()]
        left = letters[0]
        for letter in letters[1:]:
            if left + letter not in tokens:
                merges.append(f"{left} {letter}")
                tokens.append(left + letter)
            left += letter
    return TinyTokenizer((*tokens, *SPECIALS), tuple(merges))


def write_tokenizer(directory: Path, max_position: int) -> TinyTokenizer:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json."""
    tiny = tiny_tokenizer()
    first_special = len(tiny.tokens) - len(SPECIALS)
    added = [
        {"id": first_special + i, "content": text, "special": True, "normalized": False}
        | {"lstrip": False, "rstrip": False, "single_word": False}
        for i, text in enumerate(SPECIALS)
    ]
    split = {"type": "Split", "pattern": {"Regex": QWEN2_PATTERN}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tiny.tokens[:first_special])},
            "merges": [merge.split(" ") for merge in tiny.merges],
        },
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_position,
        "chat_template": CHAT_TEMPLATE,
    }
    generation_config = {
        "eos_token_id": [tiny.id("<|im_end|>"), tiny.id("<|endoftext|>")],
        "pad_token_id": tiny.id("<|endoftext|>"),
    }
    for name, content in (
        ("tokenizer.json", document),
        ("tokenizer_config.json", tokenizer_config),
        ("generation_config.json", generation_config),
    ):
        (directory / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return tiny
