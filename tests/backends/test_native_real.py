"""The default target on the native backend: a fixed answer, and its perplexity beside fp32."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest

from sonoran.backends.base import Rows
from sonoran.backends.native import NativeBackend
from sonoran.models.registry import DEFAULT_DRAFT, DEFAULT_TARGET
from sonoran.models.tokenizer.tokenizer import Tokenizer
from tests.backends.real_models import greedy, log_softmax, perplexity, real_model, run
from tests.backends.real_text import TEXT
from tests.native.packing import present_sets

pytestmark = pytest.mark.real

SMOLLM = "smollm2-135m-instruct"
QUESTION = "Write a Python function that returns the n-th Fibonacci number, without recursion."
ANSWER = """\
```python
def fibonacci(n):
    # Base cases for the first two Fibonacci numbers
    if n == 0:
        return 0
    elif n == 1:
        return 1
    
    # Initialize the first two Fibonacci numbers
    a, b = 0, 1
    
    # Calculate the n-th Fibonacci number iteratively
    for _ in range(2, n + 1):
        a, b = b, a + b
    
    return b
```
"""  # noqa: W293
# Perplexity of TEXT (its 501 tokens after the first) under the default target, all weights dequantised to
# fp32 and no other rounding: TorchBackend(open_model(path), 64, 16, batched=True), once, in 7 GB of memory.
# Under the same model, ANSWER is greedy: at every token it leads by 0.1 logits or more.
FP32_PERPLEXITY = 10.7700


@pytest.fixture(scope="module")
def target() -> Iterator[tuple[NativeBackend, Tokenizer]]:
    model_file = real_model(DEFAULT_TARGET)
    backend = NativeBackend(model_file, num_blocks=64)
    yield backend, Tokenizer.from_model(model_file)
    backend.close()


def test_the_default_target_answers_as_in_fp32(target: tuple[NativeBackend, Tokenizer]) -> None:
    backend, tokenizer = target
    prompt = tokenizer.encode_chat([{"role": "user", "content": QUESTION}])
    got = tokenizer.decode(greedy(backend, prompt, len(tokenizer.encode(ANSWER))))
    assert got[: len(ANSWER)] == ANSWER


def test_perplexity_is_within_half_a_percent_of_fp32(target: tuple[NativeBackend, Tokenizer]) -> None:
    backend, tokenizer = target
    ids = tokenizer.encode(TEXT)
    assert len(ids) == 502
    assert perplexity(log_softmax(run(backend, ids[:-1])), ids) == pytest.approx(FP32_PERPLEXITY, rel=0.005)


def test_prefill_and_single_tokens_give_the_same_bits(target: tuple[NativeBackend, Tokenizer]) -> None:
    backend, tokenizer = target
    ids = tokenizer.encode(TEXT)[:14]
    whole = run(backend, ids)
    for i in (0, 1, 13):
        run(backend, ids)
        np.testing.assert_array_equal(run(backend, ids[: i + 1], i), whole[i : i + 1])


def test_small_model_is_near_its_fp32_self() -> None:
    """Live: SmolLM2 beside the reference, in bits that its predictions lose."""
    torch = pytest.importorskip("torch")
    from tests.oracles.torch_backend import TorchBackend

    model_file = real_model(SMOLLM)
    ids = Tokenizer.from_model(model_file).encode(TEXT)[300:380]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        exact = log_softmax(run(TorchBackend(model_file, 6, 16, batched=True), ids[:-1]))
    finally:
        torch.set_num_threads(threads)
    ours = log_softmax(run(NativeBackend(model_file, num_blocks=6), ids[:-1]))
    assert perplexity(ours, ids) == pytest.approx(perplexity(exact, ids), rel=0.02)
    divergence = (np.exp(exact) * (exact - ours)).sum(1)
    assert divergence.mean() < 0.006
    assert divergence.max() < 0.1


def test_instruction_sets_and_threads_agree_on_the_default_draft() -> None:
    model_file = real_model(DEFAULT_DRAFT)
    ids = Tokenizer.from_model(model_file).encode(TEXT)[:12]
    logits = []
    for i, name in enumerate(present_sets()[:-1]):  # portable code would take minutes
        backend = NativeBackend(model_file, num_blocks=1, threads=1 + i % 2, instruction_set=name)
        logits.append(run(backend, ids))
        backend.close()
    for other in logits[1:]:
        np.testing.assert_array_equal(logits[0], other)


TARGET_LOGITS = {
    1: "1a936219fce247d8bd5d7996", 2: "5863f0d557f4ea5b71a1f608", 3: "c4b60a33a6ed2e46dec61284",
    4: "5debf9bf7922dfb977b1a242", 5: "a9e7c62b9a39c3593941d281", 6: "607e89b4bd847194ce5bb393",
    7: "2c26c24a0f7972a5cbfec28f", 8: "3f58f692c715659f391e1c49",
}  # fmt: skip
"""Start of the SHA-256 of the logits of so many rows of the default target behind a trunk of 40 random tokens."""


def test_no_change_of_the_kernels_changes_a_logit_of_the_default_target() -> None:
    """For every set of instructions. The sines of RoPE are glibc's: another C library may move a last place."""
    model_file = real_model(DEFAULT_TARGET)
    ids = np.random.default_rng(5).integers(0, 50000, 64)
    table = np.arange(8, dtype=np.int32)[None]
    for name in present_sets()[:-1]:
        backend = NativeBackend(model_file, num_blocks=8, threads=1, instruction_set=name)
        backend.forward(Rows.trunk(ids[:40], np.arange(40), np.zeros(40), table, 16, np.zeros(40)))
        found = {}
        for n in TARGET_LOGITS:
            rows = Rows.trunk(ids[40 : 40 + n], np.arange(40, 40 + n), np.zeros(n), table, 16, np.ones(n))
            found[n] = hashlib.sha256(backend.forward(rows).tobytes()).hexdigest()[:24]
        backend.close()
        assert found == TARGET_LOGITS, name
