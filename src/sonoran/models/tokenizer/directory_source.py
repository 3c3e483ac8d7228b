"""Build a tokenizer from the files of a Hugging Face model directory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from sonoran.errors import ModelError
from sonoran.models.tokenizer.vocabulary import Spelling, Vocabulary, end_ids, real_size


def from_directory(directory: Path) -> tuple[Any, Vocabulary]:
    """Return the ``tokenizers`` object and the vocabulary; ModelError for what is missing or unsupported.

    Read: tokenizer.json (required), tokenizer_config.json, generation_config.json, config.json, and
    chat_template.jinja.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{directory} has no tokenizer.json")
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every fault of the file
        raise ModelError(f"{path} is not a tokenizer: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    config = _read_json(directory / "tokenizer_config.json")
    generation, model = (_read_json(directory / f"{name}.json") for name in ("generation_config", "config"))
    for _, entry in sorted(config.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0])):
        if backend.token_to_id(entry["content"]) is None:
            backend.add_tokens([AddedToken(**entry)])

    ids: Mapping[str, int] = backend.get_vocab(with_added_tokens=True)
    listed = [""] * (max(ids.values(), default=-1) + 1)
    for token, token_id in ids.items():
        listed[token_id] = token
    tokens = tuple(listed[: real_size(listed)])
    named = {
        name: text
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if (text := _content(config, name))
    }
    bos, eos = (ids.get(named.get(name, "")) for name in ("bos_token", "eos_token"))
    added = {i: token for i, token in backend.get_added_tokens_decoder().items() if i < len(tokens)}
    special = frozenset(
        {i for i, token in added.items() if token.special}
        | {ids[text] for text in named.values() if text in ids}
    )
    prefix, suffix = _affixes(backend, config, bos, eos)
    decoder = list(_types(json.loads(backend.to_str())["decoder"]))
    declared = [eos, *_eos_list(generation), *_eos_list(model)]
    return backend, Vocabulary(
        tokens=tokens,
        padded_size=max(len(listed), int(model.get("vocab_size", 0))),
        spelling=_spelling(path, decoder),
        special=special,
        added=frozenset(added) | special,
        eos_ids=end_ids(tokens, special, declared),
        bos_id=bos,
        eos_id=eos,
        prefix=prefix,
        suffix=suffix,
        prefix_space="Strip" in decoder or "Metaspace" in decoder,
        named=named,
        chat_templates=_chat_templates(directory, config),
    )


def _affixes(
    backend: Any, config: Mapping[str, Any], bos: int | None, eos: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids before and after a text: explicit flags of tokenizer_config.json win over the post-processor."""
    if "add_bos_token" in config or "add_eos_token" in config:
        prefix = (bos,) if config.get("add_bos_token") and bos is not None else ()
        return prefix, (eos,) if config.get("add_eos_token") and eos is not None else ()
    bare, full = (backend.encode("a", add_special_tokens=flag).ids for flag in (False, True))
    at = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)
    return tuple(full[:at]), tuple(full[at + len(bare) :])


def _spelling(path: Path, decoder: list[str]) -> Spelling:
    if "ByteLevel" in decoder:
        return "byte_level"
    if "ByteFallback" in decoder or "Metaspace" in decoder:
        return "sentencepiece"
    raise ModelError(
        f"{path} has a decoder of unsupported kind {decoder}; ByteLevel or ByteFallback is needed"
    )


def _types(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield node["type"]
        for child in node.get("decoders", ()):
            yield from _types(child)


def _eos_list(config: Mapping[str, Any]) -> list[int]:
    value = config.get("eos_token_id")
    return [] if value is None else [int(v) for v in (value if isinstance(value, list) else [value])]


def _content(config: Mapping[str, Any], name: str) -> str | None:
    value = config.get(name)
    return value["content"] if isinstance(value, dict) else value


def _chat_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    value = config.get("chat_template")
    templates = (
        {entry["name"]: entry["template"] for entry in value}
        if isinstance(value, list)
        else ({"default": value} if value else {})
    )
    file = directory / "chat_template.jinja"
    if file.is_file():
        templates["default"] = file.read_text(encoding="utf-8")
    return templates


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds {type(content).__name__}, expected an object")
    return content
