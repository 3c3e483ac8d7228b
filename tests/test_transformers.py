"""``generate`` of transformers with candidates from a draft worker: the text is that of plain ``generate``."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from sonoran.errors import CompatibilityError, ConfigError  # noqa: E402
from sonoran.transformers import DraftWorker  # noqa: E402
from tests.hf_models import save_model  # noqa: E402
from tests.tiny_models import make_gguf  # noqa: E402

PROMPT = [[5, 6, 7, 5, 6, 7, 5, 6]]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("target")
    save_model(folder, "smollm3")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder), folder


@pytest.fixture(scope="module")
def draft(target: Any) -> Iterator[DraftWorker]:
    """The target itself drafts, with weights of 8 bits fewer."""
    _, tokenizer, folder = target
    with DraftWorker(
        tokenizer, model=str(folder), quantize="bf16", draft_vocab=0, least_chance=0.0, threads=1
    ) as worker:
        yield worker


def ids(prompt: list[list[int]] = PROMPT) -> Any:
    tensor = torch.tensor(prompt)
    return {"input_ids": tensor, "attention_mask": torch.ones_like(tensor)}


def test_greedy_text_is_that_of_plain_generate(target: Any, draft: DraftWorker) -> None:
    model = target[0]
    for length in (1, 2, 40):
        plain = model.generate(**ids(), max_new_tokens=length, do_sample=False)
        assert (
            draft.generate(model, **ids(), max_new_tokens=length, do_sample=False).tolist() == plain.tolist()
        )
    assert draft.last["accepted"] > 0.3 * draft.last["proposed"] > 0
    assert draft.last["verifications"] < 39
    assert "_get_candidate_generator" not in vars(model)
    assert draft.stats()["garbage_answers"] == draft.stats()["unknown_sequences"] == 0


def test_processors_of_the_target_apply(target: Any, draft: DraftWorker) -> None:
    model, options = target[0], {"max_new_tokens": 30, "do_sample": False, "repetition_penalty": 1.5}
    plain = model.generate(**ids(), **options)
    assert draft.generate(model, **ids(), **options).tolist() == plain.tolist()


def test_sampling_is_the_targets_own(target: Any, draft: DraftWorker) -> None:
    """At a temperature of nearly 0 its own tokens are the greedy ones; above, it runs."""
    model, options = target[0], {"max_new_tokens": 20, "do_sample": True, "top_k": 0}
    plain = model.generate(**ids(), max_new_tokens=20, do_sample=False)
    assert draft.generate(model, **ids(), temperature=1e-4, **options).tolist() == plain.tolist()
    assert draft.generate(model, **ids(), temperature=1.0, **options).shape[1] > len(PROMPT[0])


def test_candidates_leave_the_targets_distribution_alone(target: Any, draft: DraftWorker) -> None:
    """The second token, the first for which there are candidates: total variation from what the target says."""
    model = target[0]
    torch.manual_seed(0)
    with torch.no_grad():
        first = int(model(torch.tensor(PROMPT)).logits[0, -1].argmax())
        expected = model(torch.tensor([[*PROMPT[0], first]])).logits[0, -1].div(0.3).softmax(-1)
    counts, proposed = torch.zeros(len(expected)), 0
    for _ in range(120):
        out = draft.generate(model, **ids(), max_new_tokens=4, do_sample=True, temperature=0.3, top_k=0)[0]
        proposed += draft.last["proposed"]
        if out[8] == first:
            counts[out[9]] += 1
    assert proposed > 60
    assert counts.sum() >= 30
    assert 0.5 * (counts / counts.sum() - expected).abs().sum() < 0.3


def test_a_worker_that_dies_changes_no_text(target: Any) -> None:
    model, tokenizer, folder = target
    plain = model.generate(**ids(), max_new_tokens=30, do_sample=False)
    with DraftWorker(tokenizer, model=str(folder), quantize="bf16", draft_vocab=0, threads=1) as worker:
        assert worker.worker_pid is not None

        class Killer(transformers.LogitsProcessor):  # type: ignore[misc]
            """Ends the worker in the middle of the text."""

            def __call__(self, input_ids: Any, scores: Any) -> Any:
                if input_ids.shape[1] == len(PROMPT[0]) + 8 and worker.worker_pid is not None:
                    os.kill(worker.worker_pid, signal.SIGKILL)
                return scores

        options = {"max_new_tokens": 30, "do_sample": False, "logits_processor": [Killer()]}
        assert worker.generate(model, **ids(), **options).tolist() == plain.tolist()
        assert worker.generate(model, **ids(), max_new_tokens=30, do_sample=False).tolist() == plain.tolist()


def test_what_cannot_work_is_refused(target: Any, draft: DraftWorker, tmp_path: Path) -> None:
    model, tokenizer, folder = target
    with pytest.raises(ConfigError, match="prompt_lookup_num_tokens names another source of candidates"):
        draft.generate(model, **ids(), prompt_lookup_num_tokens=3)
    with pytest.raises(ConfigError, match="must be a fast one of transformers, got object"):
        DraftWorker(object(), model=str(folder))
    with pytest.raises(ConfigError, match="unknown speculative_config key 'modle'"):
        DraftWorker(tokenizer, modle="x")
    with pytest.raises(ConfigError, match="name the draft"):
        DraftWorker(tokenizer, model="auto")
    make_gguf(tmp_path / "draft.gguf", "qwen2", seed=1)
    data = (tmp_path / "draft.gguf").read_bytes().replace(b"<|im_end|>", b"<|im_END|>")
    (tmp_path / "other.gguf").write_bytes(data)
    with pytest.raises(CompatibilityError):
        DraftWorker(tokenizer, model=str(tmp_path / "other.gguf"), threads=1)
