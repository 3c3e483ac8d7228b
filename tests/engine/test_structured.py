"""Texts of a given form: always of that form, and the same in every mode."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sonoran.engine.grammar import Grammar, Grammars
from sonoran.errors import ConfigError
from sonoran.llm import LLM
from sonoran.models.tokenizer.tokenizer import Tokenizer
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.proposals import Speculation
from sonoran.sampling.structure import StructuredOutputs
from sonoran.sampling.verification import verify
from tests.tiny_models import make_gguf
from tests.tiny_tokenizer import write_tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["return", "world"]},
        "sizes": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
FORMS: dict[str, dict[str, Any]] = {
    "json": {"json": SCHEMA},
    "regex": {"regex": r"(hello|def) [0-9]{2,4}( world)?"},
    "choice": {"choice": ["hello world", "hello", "returning", 'a "quoted" one']},
    "lark": {"grammar": 'start: "(" item ("," item)* ")"\nitem: /[a-c]{1,3}/'},
    "gbnf": {"grammar": 'root ::= "yes " ("no" | "maybe")'},
}
MODES: dict[str, dict[str, Any]] = {
    "sd": {"method": "sd", "num_speculative_tokens": 3, "least_chance": 0.0},
    "ssd": {"method": "ssd", "num_speculative_tokens": 3},
    "ngram": {"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 3},
}
PROMPTS = [[40, 50, 60], [41, 52, 60, 62] * 3]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    make_gguf(folder / "target.gguf", "qwen2", seed=1)
    make_gguf(folder / "draft.gguf", "qwen2", seed=1, types="Q8_0")
    return folder / "target.gguf", folder / "draft.gguf"


def engine(pair: tuple[Path, Path], mode: str) -> LLM:
    config = dict(MODES[mode]) if mode != "ar" else None
    if config is not None and mode != "ngram":
        config["model"] = str(pair[1])
    return LLM(pair[0], speculative_config=config, max_model_len=128, threads=1)


@pytest.fixture(scope="module")
def plain(pair: tuple[Path, Path]) -> Iterator[LLM]:
    with engine(pair, "ar") as llm:
        yield llm
        llm.check_invariants()


def jobs(**more: Any) -> list[tuple[list[int], SamplingParams]]:
    return [
        (
            prompt,
            SamplingParams(
                structured_outputs=form, temperature=t, seed=s, max_tokens=100, logprobs=1, **more
            ),
        )
        for form in FORMS.values()
        for prompt in PROMPTS
        for t in (0.0, 1.0)
        for s in (1, 2)
    ]


def generated(llm: LLM, work: list[tuple[list[int], SamplingParams]]) -> list[Any]:
    outputs = llm.generate([prompt for prompt, _ in work], [params for _, params in work])
    return [
        (o.outputs[0].token_ids, o.outputs[0].text, o.outputs[0].finish_reason, o.outputs[0].logprobs)
        for o in outputs
    ]


def fits(form: dict[str, Any], text: str) -> bool:
    if "json" in form:
        value = json.loads(text)
        return (
            sorted(value) == ["kind", "name", "sizes"]
            and isinstance(value["name"], str)
            and len(value["name"]) <= 6
            and value["kind"] in ("return", "world")
            and len(value["sizes"]) <= 3
            and all(isinstance(size, int) and size <= 99 for size in value["sizes"])
        )
    if "choice" in form:
        return text in form["choice"]
    patterns = {"lark": r"\([a-c]{1,3}(,[a-c]{1,3})*\)", "gbnf": "yes (no|maybe)"}
    pattern = form.get("regex") or patterns["gbnf" if "root" in form["grammar"] else "lark"]
    return re.fullmatch(pattern, text) is not None


@pytest.fixture(scope="module")
def expected(plain: LLM) -> list[Any]:
    return generated(plain, jobs())


def test_texts_have_the_form_that_was_asked_for(expected: list[Any]) -> None:
    whole = 0
    for (_, params), (_, text, reason, _) in zip(jobs(), expected, strict=True):
        form = next(f for f in FORMS.values() if StructuredOutputs(**f) == params.structured_outputs)
        if reason == "stop":
            whole += 1
            assert fits(form, text), (form, text)
    assert whole > len(expected) // 2
    assert len({text for _, text, _, _ in expected}) > len(FORMS) * 2


@pytest.mark.parametrize("mode", MODES)
def test_texts_and_logprobs_are_the_same_in_every_mode(
    mode: str, pair: tuple[Path, Path], expected: list[Any]
) -> None:
    with engine(pair, mode) as llm:
        assert generated(llm, jobs()) == expected
        accepted = llm.statistics()["speculative_decoding"]["num_accepted_draft_tokens"]
        llm.check_invariants()
    assert accepted > 0


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_the_rejection_rule_keeps_to_the_form(mode: str, pair: tuple[Path, Path]) -> None:
    work = [(p, s) for p, s in jobs(verification="rejection")]
    with engine(pair, mode) as llm:
        for (_, params), (_, text, reason, _) in zip(work, generated(llm, work), strict=True):
            form = next(f for f in FORMS.values() if StructuredOutputs(**f) == params.structured_outputs)
            assert reason == "length" or fits(form, text)


def test_what_has_no_choice_is_a_free_draft(pair: tuple[Path, Path]) -> None:
    form = {"choice": ["hello world and hello world to the world"]}
    params = SamplingParams(structured_outputs=form, temperature=0.0, max_tokens=60)
    with engine(pair, "ngram") as llm:
        (output,) = llm.generate([PROMPTS[0]], params)
    (text,) = output.outputs
    assert text.text == form["choice"][0]
    assert output.metrics["num_rounds"] < len(text.token_ids)


def test_samples_of_one_request_have_grammars_of_their_own(plain: LLM) -> None:
    params = SamplingParams(structured_outputs=FORMS["choice"], n=6, seed=3, max_tokens=40)
    (output,) = plain.generate([PROMPTS[0]], params)
    assert all(o.text in FORMS["choice"]["choice"] for o in output.outputs)
    assert len({o.text for o in output.outputs}) > 1


def test_other_parameters_cannot_leave_the_form(plain: LLM) -> None:
    forbidding = {
        "bad_words": ["hello"],
        "allowed_token_ids": [65],
        "logit_bias": dict.fromkeys(range(200), -100.0),
    }
    params = SamplingParams(
        structured_outputs={"choice": ["hello"]}, temperature=0.0, max_tokens=9, **forbidding
    )
    assert plain.generate([PROMPTS[0]], params)[0].outputs[0].text == "hello"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, 128)
    return Tokenizer.from_directory(folder)


def compiled(tokenizer: Tokenizer, form: dict[str, Any], size: int = 300) -> Grammar:
    return Grammars(tokenizer, size).compile(StructuredOutputs(**form))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(FORMS)), draws=st.lists(st.integers(0, 10_000), min_size=5, max_size=60))
def test_a_mask_is_a_function_of_the_prefix_and_an_end_comes_in_reach(
    tokenizer: Tokenizer, name: str, draws: list[int]
) -> None:
    """However one walks and in whatever pieces it is committed; at the end of every walk there are end tokens."""
    grammar = compiled(tokenizer, FORMS[name])
    committed: list[int] = []
    ahead: list[int] = []
    for draw in draws:
        mask = grammar.mask(ahead)
        fresh = compiled(tokenizer, FORMS[name])
        assert mask is not None
        assert np.array_equal(mask, fresh.mask([*committed, *ahead]))
        ids = np.flatnonzero(mask)
        token = int(ids[draw % len(ids)])
        text = tokenizer.decode([*committed, *ahead])
        if token in tokenizer.eos_ids:
            assert fits(FORMS[name], text)
            assert grammar.mask([*ahead, token]) is None
            break
        assert not mask[tokenizer.vocab_size :].any()
        assert grammar.legal([*ahead, token]) == len(ahead) + 1
        ahead.append(token)
        if draw % 3 == 0:
            grammar.advance(ahead)
            committed, ahead = [*committed, *ahead], []
        elif draw % 3 == 1:
            grammar.mask(ahead[:-1])  # looking back changes nothing


def test_an_illegal_draft_is_rejected_and_harms_nothing(tokenizer: Tokenizer) -> None:
    rows = np.random.default_rng(1).normal(size=(4, 300)).astype(np.float32)
    params = SamplingParams(seed=5, structured_outputs=FORMS["choice"])
    texts = []
    for draft in ((), (1, 2, 3), (tokenizer.eos_ids[0], 5, 6)):
        grammar = compiled(tokenizer, FORMS["choice"])
        found = verify(
            "coupled",
            rows[: len(draft) + 1],
            [1, 2],
            2,
            Speculation(draft),
            params,
            5,
            tokenizer.eos_ids,
            grammar,
        )
        assert found.accepted == 0
        texts.append(found.tokens)
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"json": {"type": "nothing"}}, "nothing"),
        ({"json": {"not": {}}}, "not"),
        ({"json": "{"}, "structured_outputs"),
        ({"regex": "a("}, "unclosed group"),
        ({"grammar": "start: missing"}, "missing"),
    ],
)
def test_forms_that_make_no_sense_are_refused_with_the_reason(
    plain: LLM, form: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        plain.generate([PROMPTS[0]], SamplingParams(structured_outputs=form))


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({}, "exactly one"),
        ({"regex": "a", "choice": ["b"]}, "regex, choice"),
        ({"jsn": {}}, "did you mean 'json'"),
        ({"choice": "ab"}, "list of texts"),
        ({"choice": [""]}, "empty"),
        ({"regex": "a" * 300_000}, "at most"),
        ("json", "mapping"),
    ],
)
def test_wrong_forms_are_refused(form: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SamplingParams(structured_outputs=form)


@pytest.mark.parametrize("other", [{"min_tokens": 2}, {"ignore_eos": True}])
def test_what_contradicts_a_form_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="contradicts"):
        SamplingParams(structured_outputs={"regex": "a"}, **other)
