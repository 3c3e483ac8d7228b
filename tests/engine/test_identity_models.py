"""Speculation on real architectures: tiny models in PyTorch, and the default pair if it is cached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sonoran.backends.native import NativeBackend
from sonoran.config import Precision
from sonoran.drafting.model import ModelDrafter
from sonoran.engine.core import EngineCore
from sonoran.llm import LLM
from sonoran.models.cache import cache_dir, is_cached
from sonoran.models.opening import OpenModel, open_with_tokenizer
from sonoran.models.registry import DEFAULT_DRAFT, DEFAULT_TARGET, MODELS
from sonoran.sampling.params import SamplingParams
from tests.engine.helpers import run, texts
from tests.hf_models import save_model
from tests.oracles.torch_backend import TorchBackend
from tests.tiny_models import LLAMA3_SCALING, make_gguf

TINY: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2, "max_position": 128,
}  # fmt: skip
JOBS = [
    ([5, 6, 7, 5, 6, 7, 5, 6], SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)),
    (list(range(40, 63)), SamplingParams(temperature=1.0, seed=8, max_tokens=14, n=2)),
    ([9], SamplingParams(temperature=0.8, seed=9, max_tokens=12, top_k=30, repetition_penalty=1.3)),
]


def engine(target: OpenModel, draft: OpenModel | None, blocks: int) -> EngineCore:
    drafter = None
    if draft is not None:
        small = TorchBackend(draft.file, num_blocks=40, block_size=4)
        drafter = ModelDrafter(
            small, target_vocab=target.file.config.vocab_size, max_rows=16, least_chance=0.0
        )
    return EngineCore(
        TorchBackend(target.file, num_blocks=blocks, block_size=4),
        target.tokenizer,
        max_num_batched_tokens=16,
        max_num_seqs=3,
        drafter=drafter,
        num_speculative_tokens=3,
    )


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny products only lose time to PyTorch's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("arch", "options"), [("llama", {"rope_scaling": LLAMA3_SCALING}), ("qwen3", {})])
def test_tiny_models_on_the_reference_backend(arch: str, options: dict[str, Any], tmp_path: Path) -> None:
    make_gguf(tmp_path / "target.gguf", arch, seed=1, **TINY, **options)
    make_gguf(tmp_path / "draft.gguf", arch, seed=1, num_layers=1, **TINY, **options)
    target, draft = (open_with_tokenizer(tmp_path / f"{name}.gguf") for name in ("target", "draft"))
    alone = [texts(run(engine(target, None, 32), job))[0] for job in JOBS]
    assert texts(run(engine(target, draft, 32), *JOBS)) == alone
    assert texts(run(engine(target, draft, 14), *JOBS)) == alone
    equal = run(engine(target, target, 32), JOBS[0])[0].sequences[0]
    assert equal.stats.speculation.acceptance_rate == 1.0


@pytest.mark.parametrize(
    "name",
    ["gemma2", "gemma3", "phi4-mini-short", "granite", "smollm3", "olmo2", "olmo3", "qwen2-moe", "qwen3-moe"],
)
def test_tiny_models_of_other_architectures(name: str, tmp_path: Path) -> None:
    """On the native backend, with themselves in half the bits as draft."""
    pytest.importorskip("transformers")
    save_model(tmp_path, name)
    target = open_with_tokenizer(tmp_path)

    def engine(drafted: bool) -> EngineCore:
        def backend(quantize: Precision | None) -> NativeBackend:
            return NativeBackend(target.file, num_blocks=32, block_size=16, threads=1, quantize=quantize)

        vocab = target.file.config.vocab_size
        draft = ModelDrafter(backend("bf16"), target_vocab=vocab, max_rows=16, least_chance=0.0)
        return EngineCore(
            backend(None),
            target.tokenizer,
            max_num_batched_tokens=16,
            max_num_seqs=3,
            drafter=draft if drafted else None,
            num_speculative_tokens=3,
        )

    alone = [texts(run(engine(False), job))[0] for job in JOBS]
    assert texts(run(engine(True), *JOBS)) == alone
    speculation = run(engine(True), JOBS[0])[0].sequences[0].stats.speculation
    assert speculation.acceptance_rate > 0.3


@pytest.fixture(scope="module")
def pair() -> Iterator[LLM]:
    if not all(is_cached(MODELS[name], cache_dir()) for name in (DEFAULT_TARGET, DEFAULT_DRAFT)):
        pytest.skip("the default models are not cached; get them with: sonoran models pull")
    speculative = {"model": "auto", "num_speculative_tokens": 4}
    with LLM(DEFAULT_TARGET, speculative_config=speculative, max_model_len=512, max_num_seqs=4) as llm:
        yield llm
        llm.check_invariants()


@pytest.mark.real
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_default_pair_gives_the_text_of_the_target_alone(pair: LLM, temperature: float) -> None:
    messages = [
        [{"role": "user", "content": "Write a Python function that reverses a linked list."}],
        [{"role": "user", "content": "Explain in two sentences what a mutex is."}],
    ]
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=40)
    fast = pair.chat(messages, params)
    slow = pair.chat(messages, replace(params, speculative=False))
    assert [o.outputs[0].token_ids for o in fast] == [o.outputs[0].token_ids for o in slow]
    assert [o.outputs[0].text for o in fast] == [o.outputs[0].text for o in slow]
    for output in fast:
        assert output.metrics["speculative_decoding"]["draft_acceptance_rate"] > 0.3
    for output in slow:
        assert "speculative_decoding" not in output.metrics
