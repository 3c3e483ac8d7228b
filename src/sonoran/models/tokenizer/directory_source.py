"""Build a tokenizer from the files of a Hugging Face model directory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from sonoran.errors import ModelError
from sonoran.models.tokenizer.vocabulary import Spelling, Vocabulary, end_ids, real_size
from sonoran.models.untrusted import Fields, read_json, read_text, refusing, shown

LARGEST_TOKENIZER = 1 << 28  # bytes
LARGEST_VOCABULARY = 1 << 23  # far beyond any model's
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")


def from_directory(directory: Path) -> tuple[Any, Vocabulary]:
    """Return the ``tokenizers`` object and the vocabulary; ModelError for what is missing or unsupported.

    Read: tokenizer.json (required), tokenizer_config.json, generation_config.json, config.json, and
    chat_template.jinja.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{directory} has no tokenizer.json")
    backend = _backend(path)
    config = read_json(directory / "tokenizer_config.json", optional=True)
    with refusing(directory / "tokenizer_config.json"):
        _add_tokens(backend, config)
        named = {name: text for name in _NAMED if (text := _content(config, name)) is not None}
        templates = _chat_templates(config)
    file = directory / "chat_template.jinja"
    if file.is_file():
        with refusing(file):
            templates["default"] = read_text(file)
    declared: list[int] = []
    for name in ("generation_config", "config"):
        with refusing(directory / f"{name}.json"):
            declared += _eos_list(Fields(f"{directory / name}.json", _json(directory, name)))
    model = Fields(directory / "config.json", _json(directory, "config"))

    with refusing(path):
        ids: Mapping[str, int] = backend.get_vocab(with_added_tokens=True)
        highest = max(ids.values(), default=-1)
        if highest >= LARGEST_VOCABULARY:
            raise ModelError(f"{path}: token id {highest}, supported are ids below {LARGEST_VOCABULARY}")
        listed = [""] * (highest + 1)
        for token, token_id in ids.items():
            listed[token_id] = token
        tokens = tuple(listed[: real_size(listed)])
        bos, eos = (ids.get(named.get(name, "")) for name in ("bos_token", "eos_token"))
        added = {i: token for i, token in backend.get_added_tokens_decoder().items() if i < len(tokens)}
        special = frozenset(
            {i for i, token in added.items() if token.special}
            | {ids[text] for text in named.values() if text in ids}
        )
        prefix, suffix = _affixes(backend, config, bos, eos)
        decoder = list(_types(json.loads(backend.to_str())["decoder"]))
        return backend, Vocabulary(
            tokens=tokens,
            padded_size=max(len(listed), model.integer("vocab_size", 0)),
            spelling=_spelling(path, decoder),
            special=special,
            added=frozenset(added),
            eos_ids=end_ids(tokens, special, [eos, *declared]),
            bos_id=bos,
            eos_id=eos,
            prefix=prefix,
            suffix=suffix,
            prefix_space="Strip" in decoder or "Metaspace" in decoder,
            named=named,
            chat_templates=templates,
        )


def _json(directory: Path, name: str) -> dict[str, Any]:
    return read_json(directory / f"{name}.json", optional=True)


def _backend(path: Path) -> Any:
    with refusing(path):
        size = path.stat().st_size
        if size > LARGEST_TOKENIZER:
            raise ModelError(f"{path}: {size} bytes, at most {LARGEST_TOKENIZER} are read")
        try:
            backend = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for every fault of the file
            raise ModelError(f"{path} is not a tokenizer: {error}") from error
        backend.no_truncation()
        backend.no_padding()
        return backend


def _add_tokens(backend: Any, config: Mapping[str, Any]) -> None:
    """Add the tokens that only tokenizer_config.json lists, in the order of their ids."""
    listed = config.get("added_tokens_decoder") or {}
    for _, entry in sorted(listed.items(), key=lambda item: int(item[0])):
        if backend.token_to_id(entry["content"]) is None:
            backend.add_tokens([AddedToken(**entry)])


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


def _eos_list(fields: Fields) -> list[int]:
    value = fields.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise fields.wrong("eos_token_id", value, "a token id or several")
    return ids


def _content(config: Mapping[str, Any], name: str) -> str | None:
    value = config.get(name)
    text = value.get("content") if isinstance(value, dict) else value
    if text is not None and not isinstance(text, str):
        raise ModelError(f"{name} is {shown(value)}, expected a text")
    return text or None


def _chat_templates(config: Mapping[str, Any]) -> dict[str, str]:
    value = config.get("chat_template")
    if not value:
        return {}
    named = [(entry["name"], entry["template"]) for entry in value] if isinstance(value, list) else None
    templates = dict(named) if named is not None else {"default": value}
    if not all(isinstance(item, str) for pair in templates.items() for item in pair):
        raise ModelError(f"chat_template is {shown(value)}, expected a text, or a list of names and texts")
    return templates
