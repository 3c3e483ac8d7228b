"""Byte-level vocabularies: encoding, decoding, roles of tokens, GGUF metadata against directories."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from sonoran.errors import CapacityError, ConfigError, ModelError
from sonoran.models.source import open_model
from sonoran.models.tokenizer.tokenizer import Tokenizer
from tests.models.tokenizer.vocabularies import CONTROL, USER_DEFINED, byte_level, plain_texts
from tests.tiny_models import make_gguf, make_hf_dir
from tests.tiny_tokenizer import SPECIALS, tiny_tokenizer, write_tokenizer

TINY = tiny_tokenizer()
END, START, STOP = (TINY.id(name) for name in SPECIALS)
PRES = ("qwen2", "llama-bpe", "smollm", "gpt-2")
BY_PRE = {pre: Tokenizer.from_gguf(byte_level(pre)) for pre in PRES}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path, 64)
    return tmp_path


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("pre", PRES)
@given(text=plain_texts())
def test_decoding_undoes_encoding(pre: str, text: str) -> None:
    tokenizer = BY_PRE[pre]
    expected = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
    assert tokenizer.decode(tokenizer.encode(text)) == expected


def test_merges_join_words() -> None:
    ids = BY_PRE["qwen2"].encode("hello world is the")
    assert [TINY.tokens[i] for i in ids] == ["hello", "Ġworld", "Ġis", "Ġthe"]


def test_special_tokens_in_a_text_are_recognised_and_left_out_of_decoded_text() -> None:
    tokenizer = BY_PRE["qwen2"]
    ids = tokenizer.encode("<|im_start|>hello<|im_end|>")
    assert ids == [START, TINY.id("hello"), STOP]
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>hello<|im_end|>"


def test_gguf_file_and_directory_give_the_same_tokenizer(tmp_path: Path, directory: Path) -> None:
    make_gguf(tmp_path / "tiny.gguf", "qwen2", vocab_size=320)
    from_file = Tokenizer.from_model(open_model(tmp_path / "tiny.gguf"))
    make_hf_dir(directory, "qwen2", vocab_size=320)
    from_directory = Tokenizer.from_model(open_model(directory))
    text = "hello wörld, don't  return 1234\r\n\n  Ａé<|im_end|>"
    assert from_file.encode(text) == from_directory.encode(text)
    assert from_file.token_strings() == from_directory.token_strings() == TINY.tokens
    assert from_file.eos_ids == from_directory.eos_ids == (END, STOP)
    assert from_file.fingerprint() == from_directory.fingerprint()
    messages = [{"role": "user", "content": "hello"}]
    assert from_file.encode_chat(messages) == from_directory.encode_chat(messages)
    assert from_file.padded_vocab_size == from_directory.padded_vocab_size == 320


def test_padding_is_not_part_of_the_vocabulary() -> None:
    plain, padded = (Tokenizer.from_gguf(byte_level(padding=n)) for n in (0, 21))
    assert padded.vocab_size == plain.vocab_size == len(TINY.tokens)
    assert padded.padded_vocab_size == len(TINY.tokens) + 21
    assert padded.fingerprint() == plain.fingerprint()
    hello = TINY.id("hello")
    assert padded.decode([hello, len(TINY.tokens) + 3, hello]) == "hellohello"


def test_bos_is_added_when_the_file_says_so_or_the_family_has_it() -> None:
    said = Tokenizer.from_gguf(byte_level(bos_token_id=END, add_bos_token=True))
    assert said.encode("hello") == [END, TINY.id("hello")]
    assert said.encode("hello", add_special_tokens=False) == [TINY.id("hello")]
    assert said.adds_bos
    assert Tokenizer.from_gguf(byte_level("llama-bpe", bos_token_id=END)).adds_bos
    silent = Tokenizer.from_gguf(byte_level("llama-bpe", bos_token_id=END, add_bos_token=False))
    assert silent.bos_id == END
    assert not silent.adds_bos
    both = Tokenizer.from_gguf(byte_level(bos_token_id=END, add_bos_token=True, add_eos_token=True))
    assert both.encode("hello") == [END, TINY.id("hello"), STOP]


def test_directory_bos_comes_from_the_flag_or_the_post_processor(directory: Path) -> None:
    edit(directory / "tokenizer_config.json", bos_token="<|endoftext|>", add_bos_token=True)
    assert Tokenizer.from_directory(directory).encode("hello") == [END, TINY.id("hello")]
    config = json.loads((directory / "tokenizer_config.json").read_text())
    del config["add_bos_token"]
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.from_directory(directory).encode("hello") == [TINY.id("hello")]
    template = [
        {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    token = {"id": "<|im_start|>", "ids": [START], "tokens": ["<|im_start|>"]}
    processor = {
        "type": "TemplateProcessing",
        "single": template,
        "pair": template,
        "special_tokens": {"<|im_start|>": token},
    }
    edit(directory / "tokenizer.json", post_processor=processor)
    assert Tokenizer.from_directory(directory).encode("hello") == [START, TINY.id("hello")]


def test_end_tokens_are_collected_from_everywhere(directory: Path) -> None:
    assert Tokenizer.from_gguf(byte_level()).eos_ids == (END, STOP)  # im_end declared, endoftext well known
    word = TINY.id("hello")
    assert Tokenizer.from_gguf(byte_level(eot_token_id=word)).eos_ids == (word, END, STOP)
    edit(directory / "generation_config.json", eos_token_id=TINY.id("Ġthe"))
    assert TINY.id("Ġthe") in Tokenizer.from_directory(directory).eos_ids
    edit(directory / "generation_config.json", eos_token_id=[TINY.id("Ġis"), 10_000])
    (directory / "config.json").write_text(json.dumps({"eos_token_id": word, "vocab_size": 512}))
    tokenizer = Tokenizer.from_directory(directory)
    assert set(tokenizer.eos_ids) == {word, TINY.id("Ġis"), END, STOP}
    assert tokenizer.padded_vocab_size == 512


def test_a_well_known_end_token_counts_only_where_it_is_special() -> None:
    types = [1] * (len(TINY.tokens) - 3) + [USER_DEFINED, CONTROL, CONTROL]
    tokenizer = Tokenizer.from_gguf(byte_level(token_type=types))
    assert tokenizer.eos_ids == (STOP,)
    assert tokenizer.decode(tokenizer.encode("hello<|endoftext|>")) == "hello<|endoftext|>"
    assert tokenizer.encode("<|endoftext|>") == [END]


def test_added_tokens_outside_the_byte_alphabet_stand_for_themselves() -> None:
    tokens = [*TINY.tokens, "<｜end of text｜>"]
    types = [1] * (len(TINY.tokens) - 3) + [CONTROL] * 3 + [USER_DEFINED]
    tokenizer = Tokenizer.from_gguf(byte_level(tokens=tokens, token_type=types))
    ids = tokenizer.encode("hello<｜end of text｜>")
    assert ids == [TINY.id("hello"), len(TINY.tokens)]
    assert tokenizer.decode(ids) == "hello<｜end of text｜>"


def test_added_tokens_of_letters_of_the_byte_alphabet_stand_for_themselves(tmp_path: Path) -> None:
    """``é`` spells a byte that is no character alone, where a token is spelled by the alphabet."""
    tokens = [*TINY.tokens, "café", "Ġnaïve"]
    types = [1] * (len(TINY.tokens) - 3) + [CONTROL] * 3 + [USER_DEFINED] * 2
    from_file = Tokenizer.from_gguf(byte_level(tokens=tokens, token_type=types))
    write_tokenizer(tmp_path, 64)
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    size = len(TINY.tokens)
    state["added_tokens"] += [{"id": size + i, "content": tokens[size + i]} | flags for i in range(2)]
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    for tokenizer in (from_file, Tokenizer.from_directory(tmp_path)):
        text = "hello cafécafé is Ġnaïve"
        ids = tokenizer.encode(text)
        assert ids.count(size) == 2
        assert ids.count(size + 1) == 1
        assert tokenizer.decode(ids) == text


def missing_pre(architecture: str, count: int = 0) -> dict[str, Any]:
    """Metadata without the name of the pre-tokenizer; ``count`` tokens in all."""
    extra = [f"<|reserved_{i}|>" for i in range(count - len(TINY.tokens))]
    types = [1] * (len(TINY.tokens) - 3) + [CONTROL] * (3 + len(extra))
    metadata = byte_level(tokens=[*TINY.tokens, *extra], token_type=types)
    del metadata["tokenizer.ggml.pre"]
    return metadata | {"general.architecture": architecture}


@pytest.mark.parametrize(
    ("architecture", "count", "pre"),
    [
        ("qwen2", 0, "qwen2"),
        ("llama", 128_256, "llama-bpe"),
        ("llama", 0, "gpt-2"),
        ("other", 128_256, "gpt-2"),
    ],
)
@pytest.mark.parametrize("named", [None, "default"])
def test_without_a_pre_tokenizer_the_family_decides_and_a_warning_says_so(
    caplog: pytest.LogCaptureFixture, architecture: str, count: int, pre: str, named: str | None
) -> None:
    metadata = missing_pre(architecture, count) | ({"tokenizer.ggml.pre": named} if named else {})
    tokenizer = Tokenizer.from_gguf(metadata, "old.gguf")
    words = BY_PRE[pre]._backend.pre_tokenizer.pre_tokenize_str("pay 1234!!\n\n  I'LL")
    assert tokenizer._backend.pre_tokenizer.pre_tokenize_str("pay 1234!!\n\n  I'LL") == words
    (record,) = caplog.records
    assert "old.gguf does not say how words are cut" in record.getMessage()
    assert f"taking '{pre}'" in record.getMessage()
    assert ("WHICH MAY BE WRONG" in record.getMessage()) == (pre == "gpt-2")


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"lone surrogate '\\ud83d' at index 3"):
        BY_PRE["qwen2"].encode("abc\ud83d")


def test_negative_ids_are_refused() -> None:
    with pytest.raises(ConfigError, match="token id -1 is negative"):
        BY_PRE["qwen2"].decode([1, -1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "gpt3"}, r"tokenizer\.ggml\.model is 'gpt3', expected one of .*: gpt2, llama$"),
        ({"model": None}, "has no tokenizer.ggml.model"),
        ({"pre": "qwen22"}, "pre-tokenizer 'qwen22' is not supported; supported: gpt-2"),
        ({"tokens": None}, "has no tokenizer.ggml.tokens"),
        ({"token_type": [1, 2]}, "token_type has 2 entries for"),
        ({"merges": ["a b c"]}, "an entry of 3 parts: 'a b c'"),
        ({"merges": ["€ €"]}, "merges do not fit its tokens"),
    ],
)
def test_unusable_metadata_is_a_model_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_gguf(
            byte_level() | byte_level(**changes) if "pre" in changes else byte_level(**changes)
        )


def test_unusable_directories_are_model_errors(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        Tokenizer.from_directory(tmp_path / "empty")
    good = (directory / "tokenizer_config.json").read_text()
    (directory / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: not valid JSON"):
        Tokenizer.from_directory(directory)
    (directory / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ModelError, match="holds list, expected an object"):
        Tokenizer.from_directory(directory)
    (directory / "tokenizer_config.json").write_text(good)
    edit(directory / "tokenizer.json", decoder={"type": "WordPiece", "prefix": "##", "cleanup": False})
    with pytest.raises(ModelError, match=r"unsupported kind \['WordPiece'\]"):
        Tokenizer.from_directory(directory)
    (directory / "tokenizer.json").write_text("not json")
    with pytest.raises(ModelError, match="is not a tokenizer"):
        Tokenizer.from_directory(directory)


class Watched:
    """A backend that tells how many characters it was given."""

    def __init__(self, backend: Any) -> None:
        self.backend, self.read = backend, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def encode(self, text: str, add_special_tokens: bool) -> Any:
        self.read += len(text)
        return self.backend.encode(text, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize("text", ["word " * 1_000_000, "a" * 5_000_000, "\0" * 5_000_000])
@pytest.mark.parametrize("chat", [False, True])
def test_a_text_far_too_long_is_refused_before_it_is_read(directory: Path, text: str, chat: bool) -> None:
    tokenizer = Tokenizer.from_directory(directory)
    tokenizer.most_tokens = 1000
    watched = Watched(tokenizer._backend)
    tokenizer._backend = watched
    with pytest.raises(
        CapacityError, match=r"characters of the prompt are \d+ tokens, but max_model_len is 1000"
    ):
        tokenizer.encode_prompt(text, chat=chat)
    assert watched.read < 100_000


def test_what_a_model_can_take_is_not_refused_for_its_characters(directory: Path) -> None:
    tokenizer = Tokenizer.from_directory(directory)
    text = "hello world" * 5000
    expected = tokenizer.encode(text)
    tokenizer.most_tokens = len(expected)
    assert len(text) > 2 * 8 * 1000
    assert tokenizer.encode(text) == expected
    tokenizer.most_tokens = len(expected) // 4
    with pytest.raises(CapacityError):
        tokenizer.encode(text)


def test_a_tokenizer_that_breaks_down_is_one_line(directory: Path) -> None:
    """As over ten million spaces, in Rust."""

    class PanicException(BaseException):
        pass

    class Broken(Watched):
        def encode(self, text: str, add_special_tokens: bool) -> Any:
            raise PanicException("retry-limit-in-match over\nat somewhere")

    tokenizer = Tokenizer.from_directory(directory)
    tokenizer._backend = Broken(tokenizer._backend)
    with pytest.raises(ConfigError, match=r"^this text of 2 characters has no tokens \(retry.*\)$"):
        tokenizer.encode("  ")
