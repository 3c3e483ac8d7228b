"""A hundred thousand short requests over one engine: memory, descriptors and threads stay as they are."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sonoran.llm import LLM
from sonoran.sampling.params import SamplingParams
from tests.tiny_models import make_gguf

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

REQUESTS, BATCH = 100_000, 200
GROWTH_MIB = 4
"""After the first fifth; a leak of 60 bytes per request would show."""


def memory(pid: int | str = "self") -> float:
    """Resident memory of a process, in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


@pytest.mark.parametrize("mode", ["ar", "ngram", "ssd"])
def test_memory_is_flat(tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "num_kv_heads": 1, "num_layers": 1}
    make_gguf(tmp_path / "t.gguf", **shape)
    make_gguf(tmp_path / "d.gguf", seed=1, **shape)
    speculative: dict[str, Any] | None = {
        "ar": None,
        "ngram": {"method": "ngram"},
        "ssd": {"method": "ssd", "model": str(tmp_path / "d.gguf"), "threads": 1},
    }[mode]
    count = REQUESTS if mode != "ngram" else REQUESTS // 5
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    samples: list[tuple[float, float, int, int]] = []
    begin = time.monotonic()
    with LLM(tmp_path / "t.gguf", threads=1, speculative_config=speculative) as llm:
        worker = llm._runner.core.drafter.client.worker_pid if mode == "ssd" else None  # type: ignore[union-attr]
        for first in range(0, count, BATCH):
            prompts = [[n % 251 + 1, n // 251 % 251 + 1, n % 7 + 1] for n in range(first, first + BATCH)]
            outputs = llm.generate(prompts, params)
            assert all(len(output.outputs[0].token_ids) == 3 for output in outputs)
            if (first + BATCH) % (count // 10) == 0:
                gc.collect()
                fds = len(list(Path("/proc/self/fd").iterdir()))
                samples.append((memory(), memory(worker) if worker else 0.0, fds, threading.active_count()))
        llm.check_invariants()
        if worker:
            assert llm.statistics()["drafter"]["worker"]["num_sequences"] == 0
    with capsys.disabled():
        shown = ", ".join(f"{engine:.1f}+{draft:.1f}" for engine, draft, _, _ in samples)
        print(f"\n{mode}: {count} requests in {time.monotonic() - begin:.0f} s; MiB {shown}")  # noqa: T201
    early, late = samples[1], samples[-1]
    assert late[0] - early[0] < GROWTH_MIB, "the engine's memory grows"
    assert late[1] - early[1] < GROWTH_MIB, "the worker's memory grows"
    assert late[2:] == early[2:], "descriptors or threads are lost"
