"""Drafts with fewer or more tokens than their target: the text is the target's, and what both have is drafted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sonoran.config import WorkerConfig
from sonoran.errors import CompatibilityError
from sonoran.llm import LLM
from sonoran.models.opening import open_with_tokenizer
from sonoran.models.tokenizer.compatibility import compare
from sonoran.sampling.params import SamplingParams
from sonoran.ssd.model import load_draft_model
from sonoran.worker.session import draft_service
from tests.tiny_models import make_gguf
from tests.tiny_tokenizer import tiny_tokenizer
from tests.worker.workers import serving

COUNT = len(tiny_tokenizer().tokens)
ADDED = COUNT + 3  # tokens of the larger vocabulary
SMALL = {"num_layers": 1, "hidden_size": 128, "intermediate_size": 256, "num_heads": 2, "num_kv_heads": 1}
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=3, max_tokens=24, ignore_eos=True, presence_penalty=0.5),
    SamplingParams(temperature=1.0, seed=4, max_tokens=24, logit_bias={ADDED - 1: 8.0}),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both sizes of vocabulary, each as a target and as a draft; the smaller ones have no padding."""
    folder = tmp_path_factory.mktemp("models")
    paths = {name: folder / f"{name}.gguf" for name in ("more", "less", "draft more", "draft less", "other")}
    for name in ("more", "less"):
        rows = 320 if name == "more" else COUNT
        make_gguf(paths[name], "qwen2", "Q8_0", seed=1, vocab_size=rows)
        make_gguf(paths[f"draft {name}"], "qwen2", "Q8_0", seed=1, vocab_size=rows, **SMALL)
    for path in (paths["more"], paths["draft more"]):
        mark = f"[PAD{ADDED - 1}]".encode()
        content = path.read_bytes()
        assert content.count(mark) == 1
        path.write_bytes(content.replace(mark, b"<think>".ljust(len(mark), b"!")))
    paths["other"].write_bytes(paths["draft less"].read_bytes().replace(b"<|im_start|>", b"<|im_START|>"))
    return paths


def outputs(llm: LLM) -> list[list[int]]:
    prompts = [[1, 2, 3, 40], [5, 6, COUNT - 1, 7], "hello world"]
    if llm.tokenizer.vocab_size > COUNT:
        prompts += [[9, COUNT, ADDED - 1, 5], [ADDED - 1]]
    else:
        prompts += [[9, 5], [8]]
    jobs = [(prompt, params) for prompt in prompts for params in PARAMS if fits(llm, params)]
    results = llm.generate([prompt for prompt, _ in jobs], [params for _, params in jobs])
    llm.check_invariants()
    return [result.outputs[0].token_ids for result in results]


def fits(llm: LLM, params: SamplingParams) -> bool:
    return not params.logit_bias or llm.tokenizer.vocab_size > COUNT


@pytest.fixture(scope="module")
def alone(models: dict[str, Path]) -> dict[str, list[list[int]]]:
    found = {}
    for name in ("more", "less"):
        with LLM(models[name], threads=1) as llm:
            found[name] = outputs(llm)
    return found


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    yield f"ipc://{tmp_path}/worker"


@pytest.mark.parametrize(("target", "draft"), [("more", "draft less"), ("less", "draft more")])
@pytest.mark.parametrize("method", ["sd", "ssd", "remote"])
def test_texts_are_those_of_the_target_alone(
    models: dict[str, Path],
    alone: dict[str, list[list[int]]],
    address: str,
    caplog: pytest.LogCaptureFixture,
    target: str,
    draft: str,
    method: str,
) -> None:
    if target == "more":
        assert any(token >= COUNT for text in alone[target] for token in text)
    speculative: dict[str, Any] = {"method": method, "model": str(models[draft]), "num_speculative_tokens": 3}
    if method != "remote":
        run(models[target], speculative, alone[target])
    else:
        speculative = {"method": "ssd", "draft_address": address, "num_speculative_tokens": 3}
        model = load_draft_model(WorkerConfig(model=str(models[draft]), num_kv_blocks=512, threads=1))
        try:
            with serving(draft_service(model), address, heartbeat_s=5.0):
                run(models[target], speculative, alone[target])
        finally:
            model.close()
    assert [
        record
        for record in caplog.records
        if record.levelno >= logging.WARNING and "refuse" in record.message
    ] == []


def run(target: Path, speculative: dict[str, Any], expected: list[list[int]]) -> None:
    with LLM(target, threads=1, speculative_config=speculative) as llm:
        assert outputs(llm) == expected
        found = llm.statistics()
        assert found["speculative_decoding"]["num_draft_tokens"] > 0


def test_no_draft_proposes_what_its_target_lacks(models: dict[str, Path]) -> None:
    for target, draft in (("more", "draft less"), ("less", "draft more")):
        with LLM(models[target], threads=1, speculative_config={"model": str(models[draft])}) as llm:
            drafter: Any = llm._runner.core.drafter
            propose, seen = drafter.propose, set[int]()

            def watch(requests: Any, propose: Any = propose, seen: set[int] = seen) -> Any:
                answers = propose(requests)
                seen.update(token for answer in answers for token in answer.tokens)
                return answers

            drafter.propose = watch
            outputs(llm)
            assert seen
            assert max(seen) < COUNT


def test_a_worker_with_other_tokens_is_refused_on_either_side(models: dict[str, Path], address: str) -> None:
    """The target with more tokens sees it, the one with fewer is told."""
    model = load_draft_model(WorkerConfig(model=str(models["other"]), num_kv_blocks=64, threads=1))
    speculative = {"method": "ssd", "draft_address": address}
    try:
        with serving(draft_service(model), address, heartbeat_s=5.0):
            for target in ("more", "less"):
                with pytest.raises(CompatibilityError, match="vocabulary"):
                    LLM(models[target], threads=1, speculative_config=speculative)
    finally:
        model.close()


def test_what_can_never_be_proposed_is_told(models: dict[str, Path]) -> None:
    more, less = (open_with_tokenizer(models[name]).tokenizer for name in ("more", "less"))
    assert f"never propose ids {COUNT} to {ADDED - 1}" in str(compare(more, less))
    assert more.stand_in == more.encode("\n", add_special_tokens=False)[0]
