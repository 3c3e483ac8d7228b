"""Engines over real files: tiny random models in both formats, on the native backend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sonoran.assemble import plan_memory
from sonoran.backends import load
from sonoran.config import EngineConfig
from sonoran.errors import CompatibilityError, ConfigError, ModelError
from sonoran.llm import LLM
from sonoran.models.opening import Reporting, open_draft, open_with_tokenizer, same_tokenizer
from sonoran.models.source import open_model
from sonoran.sampling.params import SamplingParams
from tests.tiny_models import make_gguf, make_hf_dir

SMALL: dict[str, Any] = {
    "num_layers": 1,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_heads": 2,
    "num_kv_heads": 1,
}
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=3, max_tokens=20, n=2, top_p=0.95),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    paths = {name: folder / f"{name}.gguf" for name in ("target", "draft", "other")}
    make_gguf(paths["target"], "qwen2", "Q8_0", seed=1)
    make_gguf(paths["draft"], "qwen2", "Q8_0", seed=1, **SMALL)
    paths["other"].write_bytes(paths["draft"].read_bytes().replace(b"<|im_end|>", b"<|im_END|>"))
    paths["directory"] = folder / "directory"
    make_hf_dir(paths["directory"], "qwen2", seed=1)
    return paths


def outputs(llm: LLM) -> list[Any]:
    jobs = [(prompt, params) for prompt in ("hello world", "abc " * 30) for params in PARAMS]
    results = llm.generate([prompt for prompt, _ in jobs], [params for _, params in jobs])
    llm.check_invariants()
    return [[(c.token_ids, c.text, c.finish_reason) for c in result.outputs] for result in results]


def test_every_way_to_speculate_gives_the_text_of_none(models: dict[str, Path]) -> None:
    with LLM(models["target"], threads=1, max_num_batched_tokens=48) as llm:
        expected = outputs(llm)
    configurations: list[dict[str, Any]] = [
        {"model": str(models["draft"]), "num_speculative_tokens": 3},
        {"model": str(models["target"]), "num_speculative_tokens": 4},
        {"model": str(models["draft"]), "draft_vocab": 100, "quantize": "int4"},
        {"method": "ngram", "prompt_lookup_min": 1},
        {"method": "ssd", "model": str(models["draft"]), "num_speculative_tokens": 3, "threads": 1},
    ]
    for speculative in configurations:
        with LLM(models["target"], threads=1, num_kv_blocks=24, speculative_config=speculative) as llm:
            assert outputs(llm) == expected
            assert llm.statistics()["speculative_decoding"]["num_draft_tokens"] > 0


def test_a_draft_equal_to_the_target_is_accepted_whole(models: dict[str, Path]) -> None:
    # In the file's precision; by default a draft has 4 bits.
    speculative = {"model": str(models["target"]), "num_speculative_tokens": 4, "quantize": "file"}
    with LLM(models["target"], threads=1, speculative_config=speculative) as llm:
        outputs(llm)
        assert llm.statistics()["speculative_decoding"]["draft_acceptance_rate"] == 1.0


def test_a_directory_is_a_model_too(models: dict[str, Path]) -> None:
    with LLM(models["directory"], threads=1) as llm:
        assert len(llm.generate("hello", PARAMS[0])[0].outputs[0].token_ids) == 20


def test_a_restricted_draft_proposes_low_ids_special_tokens_and_those_of_the_text(
    models: dict[str, Path],
) -> None:
    speculative = {"model": str(models["draft"]), "draft_vocab": 64}
    with LLM(models["target"], threads=1, speculative_config=speculative) as llm:
        drafter: Any = llm._runner.core.drafter
        proposed = drafter.propose
        seen: set[int] = set()
        texts: set[int] = set()

        def watch(requests: Any) -> Any:
            texts.update(token // 16 for request in requests for token in request.tokens)
            answers = proposed(requests)
            seen.update(token for answer in answers for token in answer.tokens)
            return answers

        drafter.propose = watch
        outputs(llm)
        special = llm.tokenizer.special_ids
        blocks = {token // 16 for token in special}
        assert seen
        assert all(token < 64 or token // 16 in blocks | texts for token in seen)


def test_models_of_different_vocabularies_are_refused(models: dict[str, Path]) -> None:
    with pytest.raises(CompatibilityError, match="tokens differ"):
        LLM(models["target"], speculative_config={"model": str(models["other"])})


def test_a_missing_model_is_named() -> None:
    with pytest.raises(ModelError, match="no such file"):
        LLM("nowhere/model.gguf")


def test_loading_is_reported(models: dict[str, Path]) -> None:
    seen: list[tuple[str, int, int]] = []
    reporting = Reporting(load=lambda name, done, total: seen.append((name, done, total)))
    LLM(models["target"], threads=1, reporting=reporting).close()
    assert {name for name, _, _ in seen} == {"target.gguf"}
    assert seen[-1][1] == seen[-1][2] > 0


def test_a_callback_and_the_log_tell_of_loading(
    models: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, float]] = []
    with caplog.at_level("INFO", logger="sonoran.llm"):
        LLM(models["target"], threads=1, progress=lambda what, share: seen.append((what, share))).close()
    assert seen[-1] == ("loading target.gguf", 1.0)
    assert [share for _, share in seen] == sorted(share for _, share in seen)
    assert f"LLM('{models['target']}', max_model_len=512) is ready after" in caplog.text


def test_memory_follows_from_what_is_asked(models: dict[str, Path]) -> None:
    config = open_with_tokenizer(models["target"]).file.config
    assert config.max_position == 512
    assert plan_memory(config, EngineConfig(max_num_seqs=4)) == (512, 128)
    assert plan_memory(config, EngineConfig(num_kv_blocks=3)) == (48, 3)
    assert plan_memory(config, EngineConfig(max_model_len=100, max_num_seqs=1)) == (100, 32)
    per_block = config.num_layers * 2 * 16 * config.num_kv_heads * 64 * 2
    assert plan_memory(config, EngineConfig(kv_cache_bytes=7 * per_block + 1)) == (112, 7)
    with pytest.raises(ConfigError, match=f"one block of 16 tokens takes {per_block}"):
        plan_memory(config, EngineConfig(kv_cache_bytes=1000))


def test_the_default_context_is_what_the_model_was_trained_for_and_memory_allows(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(open_with_tokenizer(models["target"]).file.config, max_position=32768)
    one = EngineConfig(max_num_seqs=1)
    per_token = config.num_layers * 2 * config.num_kv_heads * 64 * 2
    for free, length in ((10**12, 32768), (4 * per_token * 10_000, 10_000), (1000, 4096)):
        monkeypatch.setattr(load, "available_memory", lambda free=free: free)
        assert plan_memory(config, one) == (length, length // 16)
    assert plan_memory(config, EngineConfig(max_model_len=20_000, max_num_seqs=1)) == (20_000, 1250)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_kv_blocks": 4, "max_model_len": 100}, "4 KV blocks of 16 tokens hold only 64"),
        ({"max_model_len": 1000}, "trained for 512"),
    ],
)
def test_contradictions_are_refused(models: dict[str, Path], options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        LLM(models["target"], threads=1, **options)


def test_two_models_are_one_thing_to_wait_for(models: dict[str, Path]) -> None:
    for method in ("sd", "ssd"):
        seen: list[tuple[str, float]] = []
        speculative = {"method": method, "model": str(models["draft"]), "threads": 1}
        llm = LLM(
            models["target"],
            threads=1,
            speculative_config=speculative,
            progress=lambda what, share, seen=seen: seen.append((what, share)),  # type: ignore[misc]
        )
        llm.close()
        assert {what for what, _ in seen} == {"loading target.gguf and draft.gguf"}
        shares = [share for _, share in seen]
        assert shares == sorted(shares)
        assert shares[0] < 0.5
        assert shares[-1] == 1.0


def test_the_same_tokenizer_is_built_once(models: dict[str, Path]) -> None:
    target = open_with_tokenizer(models["target"])
    draft = open_draft(target, models["draft"])
    assert draft is not None
    assert draft.tokenizer is target.tokenizer
    assert not same_tokenizer(target.file, open_model(models["other"]))
    assert not same_tokenizer(target.file, open_model(models["directory"]))
