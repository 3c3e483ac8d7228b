"""Build a tokenizer from the metadata of a GGUF file (keys ``tokenizer.*``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from sonoran.errors import ModelError, nearest
from sonoran.models.tokenizer.vocabulary import SPACE_MARK, Spelling, Vocabulary, end_ids, real_size

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


NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # tokenizer.ggml.token_type
_SPELLINGS: dict[str, Spelling] = {"gpt2": "byte_level", "llama": "sentencepiece"}
_ROLES = {"unk_token": "unknown", "pad_token": "padding"}
_TEMPLATE = "tokenizer.chat_template"


def from_gguf(metadata: Mapping[str, Any]) -> tuple[Any, Vocabulary]:
    """Return the ``tokenizers`` object and the vocabulary; ModelError for what is missing or unsupported."""

    def value(key: str, default: Any = None) -> Any:
        return metadata.get(f"tokenizer.ggml.{key}", default)

    kind = value("model")
    if kind not in _SPELLINGS:
        known = nearest(str(kind), _SPELLINGS) if kind else "; the file has no tokenizer.ggml.model"
        raise ModelError(f"unsupported tokenizer {kind!r}{known}")
    spelling = _SPELLINGS[kind]
    listed = value("tokens")
    if listed is None or not len(listed):
        raise ModelError("the file has no tokenizer.ggml.tokens")
    size = real_size(listed)
    tokens = tuple(str(token) for token in listed[:size])
    types = [int(t) for t in value("token_type", ())][:size] or [NORMAL] * size
    if len(types) != size:
        raise ModelError(f"tokenizer.ggml.token_type has {len(types)} entries for {size} tokens")

    def token_id(role: str, default: int | None = None) -> int | None:
        number = value(f"{role}_token_id", default)
        return int(number) if number is not None and 0 <= int(number) < size else None

    sentencepiece = spelling == "sentencepiece"
    bos = token_id("bos", 1 if sentencepiece else None)
    eos = token_id("eos", 2 if sentencepiece else None)
    roles = [bos, *(token_id(role) for role in ("padding", "eot", "eom")), eos]
    control = {i for i, t in enumerate(types) if t in (CONTROL, UNKNOWN)} | {
        i for i in roles if i is not None
    }
    user_defined = {i for i, t in enumerate(types) if t == USER_DEFINED} - control

    add_bos = sentencepiece
    prefix_space = sentencepiece and bool(value("add_space_prefix", True))
    if sentencepiece:
        mergeable = [i for i, t in enumerate(types) if t in (NORMAL, USER_DEFINED)]
        scores = value("scores")
        merges = _merges(value("merges")) or merges_from_scores(tokens, scores, mergeable)
        backend = _sentencepiece_backend(tokens, merges, prefix_space, token_id("unknown", 0))
    else:
        pipeline = byte_pipeline(str(value("pre", "default")))
        add_bos = pipeline.add_bos
        backend = _bpe(tokens, _merges(value("merges")), ignore_merges=pipeline.ignore_merges)
        if pipeline.normalizer is not None:
            backend.normalizer = pipeline.normalizer
        backend.pre_tokenizer = pipeline.pre_tokenizer
        backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(tokens[i], normalized=False) for i in sorted(control)])
    backend.add_tokens([AddedToken(tokens[i], normalized=False) for i in sorted(user_defined)])

    special = frozenset(control)
    add_bos, add_eos = bool(value("add_bos_token", add_bos)), bool(value("add_eos_token", False))
    named_ids = {name: token_id(role) for name, role in _ROLES.items()} | {"bos_token": bos, "eos_token": eos}
    return backend, Vocabulary(
        tokens=tokens,
        padded_size=len(listed),
        spelling=spelling,
        special=special,
        added=special | user_defined,
        eos_ids=end_ids(tokens, special, roles[2:]),
        bos_id=bos,
        eos_id=eos,
        prefix=(bos,) if add_bos and bos is not None else (),
        suffix=(eos,) if add_eos and eos is not None else (),
        prefix_space=prefix_space,
        named={name: tokens[i] for name, i in named_ids.items() if i is not None},
        chat_templates={
            key[len(_TEMPLATE) + 1 :] or "default": str(metadata[key])
            for key in metadata
            if key == _TEMPLATE or key.startswith(_TEMPLATE + ".")
        },
    )


def merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float] | None, mergeable: Collection[int]
) -> list[tuple[str, str]]:
    """Merges that a SentencePiece BPE vocabulary implies: each split of a token in two, best score first."""
    if scores is None or len(scores) < len(tokens):
        found = 0 if scores is None else len(scores)
        raise ModelError(f"tokenizer.ggml.scores has {found} entries for {len(tokens)} tokens")
    ids = _by_token(tokens)
    merges = []
    for token_id in sorted(mergeable, key=lambda i: (-scores[i], i)):
        token = tokens[token_id]
        splits = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [pair for pair in splits if pair[0] in ids and pair[1] in ids]
        merges += sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return merges


def _bpe(tokens: Sequence[str], merges: list[tuple[str, str]], **options: Any) -> Any:
    try:
        return Tokenizer(models.BPE(_by_token(tokens), merges, **options))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"the file's merges do not fit its tokens: {error}") from error


def _by_token(tokens: Sequence[str]) -> dict[str, int]:
    return {token: i for i, token in enumerate(tokens)}


def _merges(lines: Sequence[str] | None) -> list[tuple[str, str]]:
    pairs = [tuple(str(line).split(" ")) for line in (lines if lines is not None else ())]
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise ModelError(f"tokenizer.ggml.merges has an entry of {len(wrong)} parts: {' '.join(wrong)!r}")
    return cast("list[tuple[str, str]]", pairs)


def _sentencepiece_backend(
    tokens: Sequence[str], merges: list[tuple[str, str]], prefix_space: bool, unknown: int | None
) -> Any:
    unk_token = tokens[unknown] if unknown is not None else None
    backend = _bpe(tokens, merges, unk_token=unk_token, fuse_unk=True, byte_fallback=True)
    spaces = normalizers.Replace(" ", SPACE_MARK)
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE_MARK), spaces]) if prefix_space else spaces
    )
    steps = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix_space else steps)
    return backend
