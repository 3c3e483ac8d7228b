"""Build a tokenizer from the metadata of a GGUF file (keys ``tokenizer.*``)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from sonoran.errors import ModelError
from sonoran.models.tokenizer.vocabulary import SPACE_MARK, Spelling, Vocabulary, end_ids, real_size
from sonoran.models.untrusted import Fields, shown

log = logging.getLogger(__name__)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # tokenizer.ggml.token_type
LLAMA3_TOKENS = 128_256
LONGEST_TOKEN = 1000  # characters; every way to split one is tried
_SPELLINGS: dict[str, Spelling] = {"gpt2": "byte_level", "llama": "sentencepiece"}
_ROLES = {"unk_token": "unknown", "pad_token": "padding"}
_TEMPLATE = "tokenizer.chat_template"


def from_gguf(metadata: Mapping[str, Any], where: str = "the file") -> tuple[Any, Vocabulary]:
    """Return the ``tokenizers`` object and the vocabulary; ModelError for what is missing or unsupported.

    ``where`` is the file's name for messages.
    """
    fields = Fields(where, metadata, "tokenizer.ggml.")
    kind = fields.get("model")
    if kind is None:
        raise ModelError(f"{where}: the file has no tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in _SPELLINGS:
        raise fields.wrong("model", kind, f"one of the supported tokenizers: {', '.join(_SPELLINGS)}")
    spelling = _SPELLINGS[kind]
    sentencepiece = spelling == "sentencepiece"
    listed = _strings(fields, "tokens")
    if not listed:
        raise ModelError(f"{where}: the file has no tokenizer.ggml.tokens")
    size = real_size(listed)
    tokens = tuple(listed[:size])
    types = _types(fields, size)

    def token_id(role: str, default: int | None = None) -> int | None:
        number = fields.get(f"{role}_token_id")
        number = default if number is None else fields.integer(f"{role}_token_id")
        return number if number is not None and 0 <= number < size else None

    bos = token_id("bos", 1 if sentencepiece else None)
    eos = token_id("eos", 2 if sentencepiece else None)
    roles = [bos, *(token_id(role) for role in ("padding", "eot", "eom")), eos]
    control = {i for i, t in enumerate(types) if t in (CONTROL, UNKNOWN)} | {
        i for i in roles if i is not None
    }
    user_defined = {i for i, t in enumerate(types) if t == USER_DEFINED} - control

    prefix_space = sentencepiece and fields.flag("add_space_prefix", True)
    if sentencepiece:
        add_bos = True
        mergeable = [i for i, t in enumerate(types) if t in (NORMAL, USER_DEFINED)]
        merges = _merges(fields) or merges_from_scores(tokens, fields.get("scores"), mergeable)
        backend = _sentencepiece_backend(tokens, merges, prefix_space, token_id("unknown", 0))
    else:
        pipeline = byte_pipeline(_pre_tokenizer(fields, len(listed)), where)
        add_bos = pipeline.add_bos
        backend = _byte_level_backend(tokens, _merges(fields), pipeline)
    backend.add_special_tokens([AddedToken(tokens[i], normalized=False) for i in sorted(control)])
    backend.add_tokens([AddedToken(tokens[i], normalized=False) for i in sorted(user_defined)])

    special = frozenset(control)
    add_bos, add_eos = fields.flag("add_bos_token", add_bos), fields.flag("add_eos_token", False)
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
        chat_templates=_chat_templates(where, metadata),
    )


def _strings(fields: Fields, key: str) -> list[str]:
    """A list of strings; empty when the key is missing."""
    values = fields.get(key)
    if values is None:
        return []
    if not isinstance(values, (list, tuple)) or not all(isinstance(value, str) for value in values):
        raise fields.wrong(key, values, "strings")
    return list(values)


def _types(fields: Fields, size: int) -> list[int]:
    types = [int(t) for t in values][:size] if (values := fields.get("token_type")) is not None else []
    if types and len(types) != size:
        raise ModelError(
            f"{fields.where}: tokenizer.ggml.token_type has {len(types)} entries for {size} tokens"
        )
    return types or [NORMAL] * size


def _chat_templates(where: str, metadata: Mapping[str, Any]) -> dict[str, str]:
    templates = {}
    for key in metadata:
        if key == _TEMPLATE or key.startswith(_TEMPLATE + "."):
            template = metadata[key]
            if not isinstance(template, str):
                raise ModelError(f"{where}: {key} is {shown(template)}, expected a text")
            templates[key[len(_TEMPLATE) + 1 :] or "default"] = template
    return templates


# How words are cut before the merges, by ``tokenizer.ggml.pre``.

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35_PATTERN = QWEN2_PATTERN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
SEED_CODER_PATTERN = QWEN2_PATTERN.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+")
GPT4O_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN_PATTERN = GPT4O_PATTERN.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace(r"\p{N}{1,3}", r"\p{N}")
# Of DeepSeek: cut one after the other. The letters are those of Latin, Greek, Cyrillic, Armenian and the like.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-"
    "\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-"
    "\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-"
    "\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-"
    "\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-"
    "\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-"
    "\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-"
    "\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
DEEPSEEK_LLM_PATTERNS = (
    r"[\r\n]",
    rf"\s?[{_CASED}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}+",
)
DEEPSEEK_CODER_PATTERNS = (
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}",
)
DEEPSEEK_V3_PATTERNS = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)


@dataclass(frozen=True, slots=True)
class BytePipeline:
    """Steps before the merges; ``ignore_merges`` takes a word that is a token as it is."""

    normalizer: Any
    pre_tokenizer: Any
    ignore_merges: bool = False
    add_bos: bool = False  # when the file does not say


def _split(*patterns: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns),
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


def _cutting(*patterns: str, **options: Any) -> Callable[[], BytePipeline]:
    return lambda: BytePipeline(None, _split(*patterns), **options)


# Names that llama.cpp treats alike stand together.
PIPELINES: dict[str, Callable[[], BytePipeline]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "a.x-4.0", "mellum", "gigachat", "exaone4"), _gpt2),
    **dict.fromkeys(("mpt", "olmo", "jais", "trillion", "granite-docling"), _gpt2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _llama3),
    **dict.fromkeys(("falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _llama3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _cutting(LLAMA3_PATTERN)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"), _qwen2),
    "qwen35": lambda: BytePipeline(normalizers.NFC(), _split(QWEN35_PATTERN)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "minerva-7b", "mellum2"), _smollm),
    "tekken": _cutting(TEKKEN_PATTERN, ignore_merges=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _cutting(GPT4O_PATTERN)),
    "seed-coder": _cutting(SEED_CODER_PATTERN),
    "deepseek-llm": _cutting(*DEEPSEEK_LLM_PATTERNS),
    "deepseek-coder": _cutting(*DEEPSEEK_CODER_PATTERNS),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _cutting(*DEEPSEEK_V3_PATTERNS)),
}


def byte_pipeline(name: str, where: str = "the file") -> BytePipeline:
    """Return the steps for ``tokenizer.ggml.pre``; raise ModelError for a name that is not known."""
    if name not in PIPELINES:
        raise ModelError(
            f"{where}: pre-tokenizer {shown(name)} is not supported; supported: {', '.join(PIPELINES)}"
        )
    return PIPELINES[name]()


def _pre_tokenizer(fields: Fields, size: int) -> str:
    """The file's name for its pre-tokenizer, or the best guess for files from before it was written down."""
    name = fields.get("pre")
    if name is not None and not isinstance(name, str):
        raise fields.wrong("pre", name, "a name")
    if name not in (None, "", "default"):
        return str(name)
    architecture = fields.values.get("general.architecture")
    if architecture in ("qwen2", "qwen3"):
        guess, sure = "qwen2", True
    elif architecture == "llama" and size == LLAMA3_TOKENS:
        guess, sure = "llama-bpe", True
    else:
        guess, sure = "gpt-2", False
    log.warning(
        "%s does not say how words are cut (tokenizer.ggml.pre is missing, as in files of before May 2024); "
        "taking %r%s. Convert or download the model again",
        fields.where,
        guess,
        ", as the model's family does" if sure else ", WHICH MAY BE WRONG: answers may be much worse",
    )
    return guess


# The vocabulary with its merges.


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
        if len(token) > LONGEST_TOKEN:
            raise ModelError(
                f"token {token_id} has {len(token)} characters, at most {LONGEST_TOKEN} can be merged"
            )
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


def _merges(fields: Fields) -> list[tuple[str, str]]:
    pairs = [tuple(line.split(" ")) for line in _strings(fields, "merges")]
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise ModelError(
            f"{fields.where}: tokenizer.ggml.merges has an entry of {len(wrong)} parts: {shown(' '.join(wrong))}"
        )
    return cast("list[tuple[str, str]]", pairs)


def _byte_level_backend(tokens: Sequence[str], merges: list[tuple[str, str]], pipeline: BytePipeline) -> Any:
    backend = _bpe(tokens, merges, ignore_merges=pipeline.ignore_merges)
    if pipeline.normalizer is not None:
        backend.normalizer = pipeline.normalizer
    backend.pre_tokenizer = pipeline.pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    return backend


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
