"""Names of the hub, and which files of a repository make the model that is meant."""

from __future__ import annotations

import pytest

from sonoran.errors import DownloadError
from sonoran.models.repository import (
    HubName,
    RemoteFile,
    Repository,
    choose,
    loads,
    parse_hub_name,
    quant_of,
    quantisations,
    ranked,
)


def repository(*names: str) -> Repository:
    return Repository("org/repo", "c", tuple(RemoteFile(name, 10 + i) for i, name in enumerate(names)))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen3-0.6B-GGUF", HubName("Qwen/Qwen3-0.6B-GGUF")),
        ("org/repo:Q4_K_M", HubName("org/repo", "Q4_K_M")),
        ("org/repo:sub/file-Q8_0.gguf", HubName("org/repo", "sub/file-Q8_0.gguf")),
        ("models/file.gguf", None),
        ("./org/repo", None),
        ("/org/repo", None),
        ("~/repo", None),
        ("org/repo/more", None),
        ("org/repo:", None),
        ("qwen", None),
    ],
)
def test_names_of_the_hub(text: str, name: HubName | None) -> None:
    assert parse_hub_name(text) == name
    if name is not None:
        assert str(name) == text


@pytest.mark.parametrize(
    ("stem", "quant", "does"),
    [
        ("Qwen3-0.6B-Q8_0", "Q8_0", True),
        ("qwen2.5-coder-0.5b-instruct-q4_k_m", "Q4_K_M", True),
        ("SmolLM2-135M-Instruct.Q4_1", "Q4_1", True),
        ("UD-Q4_K_XL/Llama-UD-Q4_K_XL", "UD-Q4_K_XL", True),
        ("UD-Q8_K_XL/Llama-UD-Q8_K_XL", "UD-Q8_K_XL", True),
        ("BF16/x-BF16", "BF16", True),
        ("phi-3-mini-4k-instruct-fp16", "FP16", True),
        ("phi-3-mini-4k-instruct-q4", "Q4", True),
        ("x-Q4_0_4_4", "Q4_0_4_4", False),
        ("x-Q4_0_8_8", "Q4_0_8_8", False),
        ("x-Q3_K_L", "Q3_K_L", True),
        ("x-IQ4_XS", "IQ4_XS", True),
        ("x-IQ3_M", "IQ3_M", True),
        ("gpt-oss-20b-MXFP4_MOE", "MXFP4_MOE", True),
        ("model", "model", True),
    ],
)
def test_what_a_file_name_says(stem: str, quant: str, does: bool) -> None:
    assert quant_of(stem) == quant
    assert loads(quant) is does


def test_parts_are_one_model_and_incomplete_ones_none() -> None:
    found = quantisations(
        repository(
            "big-Q8_0-00002-of-00002.gguf",
            "big-Q8_0-00001-of-00002.gguf",
            "lost-Q6_K-00001-of-00003.gguf",
            "lost-Q6_K-00003-of-00003.gguf",
            "small-Q4_0.gguf",
            "mmproj-model-f16.gguf",
            "small.imatrix.gguf",
            "README.md",
        ).files
    )
    assert {
        quant: [[file.name for file in model] for model in models] for quant, models in found.items()
    } == {
        "Q8_0": [["big-Q8_0-00001-of-00002.gguf", "big-Q8_0-00002-of-00002.gguf"]],
        "Q4_0": [["small-Q4_0.gguf"]],
    }


def test_the_order_of_preference() -> None:
    quants = ["Q2_K", "BF16", "Q3_K_M", "Q8_0", "UD-Q4_K_XL", "Q4_0", "Q4_K_M", "F32"]
    assert ranked(quants) == ["Q4_K_M", "Q4_0", "Q8_0", "UD-Q4_K_XL", "BF16", "F32", "Q3_K_M", "Q2_K"]


def test_without_a_quantisation_the_preferred_one_is_chosen_and_the_others_named() -> None:
    choice = choose(repository("m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-IQ1_S.gguf"), None)
    assert (choice.quant, str(choice.name), choice.size) == ("Q4_K_M", "org/repo:Q4_K_M", 11)
    assert "Q4_K_M > Q4_0" in choice.why
    assert choice.why.endswith("also there: Q8_0, IQ1_S")
    only = choose(repository("m-Q8_0.gguf"), None)
    assert (only.quant, only.why) == ("Q8_0", "the only one there")


def test_a_quantisation_is_found_whatever_its_case_and_a_file_by_its_name() -> None:
    held = repository("a/m-q4_k_m.gguf", "m-Q8_0.gguf", "n-Q8_0.gguf")
    assert [file.name for file in choose(held, "q4_k_m").files] == ["a/m-q4_k_m.gguf"]
    assert [file.name for file in choose(held, "n-Q8_0.gguf").files] == ["n-Q8_0.gguf"]
    assert [file.name for file in choose(held, "m-q4_k_m.gguf").files] == ["a/m-q4_k_m.gguf"]


@pytest.mark.parametrize(
    ("names", "quant", "message"),
    [
        (
            ("m-Q4_K_M.gguf", "m-Q8_0.gguf"),
            "Q4_K_S",
            r"has no 'Q4_K_S'; did you mean Q4_K_M\? It has: Q4_K_M, Q8_0",
        ),
        (("m-Q8_0.gguf",), "nonsense", r"has no 'nonsense'; it has: Q8_0"),
        (("m-Q4_0_4_4.gguf", "m-Q8_0.gguf"), "Q4_0_4_4", r"of a type that does not load; these load: Q8_0"),
        (("m-Q4_0_4_4.gguf",), None, r"has Q4_0_4_4, none of which loads; supported tensor types: F32, "),
        (
            ("m-Q8_0.gguf", "n-Q8_0.gguf"),
            None,
            r"2 models in Q8_0; name a file: org/repo:m-Q8_0.gguf, org/repo:n-Q8",
        ),
        (("m-Q8_0.gguf",), "n-Q8_0.gguf", r"has no file n-Q8_0.gguf; did you mean m-Q8_0.gguf"),
        (
            ("config.json", "model.safetensors"),
            "Q8_0",
            r"has no GGUF files, so no 'Q8_0'; its safetensors are named",
        ),
        (
            ("config.json", "pytorch_model.bin"),
            None,
            r"no model that loads: no GGUF files, .* end in \.bin, \.json",
        ),
        (("model.safetensors",), None, r"no model that loads: no GGUF files, and not config\.json"),
        ((), None, r"its files end in nothing"),
    ],
)
def test_refusals_say_what_there_is(names: tuple[str, ...], quant: str | None, message: str) -> None:
    with pytest.raises(DownloadError, match=message):
        choose(repository(*names), quant)


def test_of_safetensors_only_what_is_read_is_fetched() -> None:
    held = repository(
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
        "consolidated.safetensors", "original/model.safetensors", "pytorch_model.bin", "README.md",
        "tokenizer.json", "vocab.json", "config.json", "chat_template.jinja",
    )  # fmt: skip
    choice = choose(held, None)
    assert choice.quant is None
    assert [file.name for file in choice.files] == [
        "config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors.index.json",
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    ]  # fmt: skip
    one = choose(repository("config.json", "model.safetensors", "model-00001-of-00001.safetensors"), None)
    assert [file.name for file in one.files] == ["config.json", "model.safetensors"]
