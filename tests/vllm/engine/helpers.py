"""vLLM on this machine's processors with tiny models, in the process of the test: target on the first core, draft on the
last."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from sonoran.vllm import SSDProposer
from tests.tiny_models import make_hf_dir, write_safetensors

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0, 1]
TARGET_CORE, DRAFT_CORE = CORES[0], CORES[-1]
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": str(TARGET_CORE),
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

K = 4
TINY = {"head_dim": 32, "num_heads": 4, "num_kv_heads": 2, "hidden_size": 128, "max_position": 512}


def make_pair(folder: Path, arch: str, noise: float = 0.1) -> tuple[Path, Path]:
    """Write a target, and a draft that is the same with relative noise on its weights."""
    target, draft = folder / f"{arch}-target", folder / f"{arch}-draft"
    for path in (target, draft):
        make_hf_dir(path, arch, seed=3, **TINY)
    rng = np.random.default_rng(4)
    weights = load_file(draft / "model.safetensors")
    spread = {
        name: (w + noise * float(w.std()) * rng.normal(size=w.shape)).astype(np.float32)
        for name, w in weights.items()
    }
    write_safetensors(draft / "model.safetensors", spread)
    return target, draft


def speculation(draft: Path | None = None, k: int = K, **options: Any) -> dict[str, Any]:
    """Return what an LLM is told to have SSD."""
    place = {} if draft is None else {"draft": str(draft), "cores": str(DRAFT_CORE), "quantize": "file"}
    return {
        "speculative_config": {
            "method": "custom_class",
            "model": "sonoran.vllm.SSDProposer",
            "num_speculative_tokens": k,
        },
        "additional_config": {"sonoran": {"log_every_s": 0, "least_chance": 0.0, **place, **options}},
    }


def speculating(llm: Any) -> SSDProposer:
    """Return the proposer of an engine in this process."""
    proposer = llm.llm_engine.model_executor.driver_worker.worker.model_runner.drafter
    assert isinstance(proposer, SSDProposer)
    return proposer


@contextmanager
def engine(target: Path, **options: Any) -> Iterator[Any]:
    """An LLM of vLLM in fp32, and nothing left of it afterwards."""
    os.environ.update(ENVIRONMENT)  # vLLM reads it when it is imported
    from vllm.distributed import cleanup_dist_env_and_memory

    from vllm import LLM

    defaults = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 256,
        "max_num_seqs": 64,
        "seed": 0,
    }
    llm = LLM(str(target), **{**defaults, **options})
    try:
        yield llm
    finally:
        if "additional_config" in options:
            speculating(llm).close()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def prompts(count: int, seed: int = 0, low: int = 4, high: int = 40) -> list[list[int]]:
    """Return prompts of random tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(5, 260, rng.integers(low, high)).tolist() for _ in range(count)]


def generate(llm: Any, ids: Sequence[Sequence[int]], **params: Any) -> list[list[list[int]]]:
    """Return the token ids of all samples of every prompt."""
    from vllm import SamplingParams

    wanted = SamplingParams(**{"temperature": 0.0, "max_tokens": 48, "ignore_eos": True, **params})
    given = [{"prompt_token_ids": list(prompt)} for prompt in ids]
    found = llm.generate(given, wanted, use_tqdm=False)
    return [[list(sample.token_ids) for sample in output.outputs] for output in found]
