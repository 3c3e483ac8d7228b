"""Whether a model loads and answers: the check behind `sonoran doctor`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from sonoran.errors import SonoranError
from sonoran.llm import LLM
from sonoran.models.cache import is_cached, model_path, tree_bytes, work_dir
from sonoran.models.registry import MODELS, ModelEntry
from sonoran.planning.profile.passes import Clock
from sonoran.sampling.params import SamplingParams

PROMPT = "def add(a, b):"
NEW_TOKENS = 4


def cached_models(cache: Path) -> list[dict[str, Any]]:
    """Return name, size, whether it is there, and bytes of an unfinished pull, for each known model."""
    return [
        {
            "name": entry.name,
            "size": entry.size,
            "cached": is_cached(entry, cache),
            "path": str(model_path(entry, cache)) if is_cached(entry, cache) else None,
            "partial_bytes": tree_bytes(work_dir(entry, cache)),
        }
        for entry in MODELS.values()
    ]


def smallest_cached(cache: Path) -> ModelEntry | None:
    """Return the smallest known model in the cache."""
    return min((e for e in MODELS.values() if is_cached(e, cache)), key=lambda e: e.size, default=None)


def try_model(path: Path, *, clock: Clock = time.perf_counter) -> dict[str, Any]:
    """Load a model and generate a few tokens. ``works`` is False when that fails, and ``error`` says why."""
    begin = clock()
    try:
        with LLM(path, speculative_config=False, max_model_len=64, max_num_seqs=1) as llm:
            loaded = clock()
            params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
            output = llm.generate(PROMPT, params)[0].outputs[0]
    except SonoranError as error:
        return {"works": False, "error": str(error)}
    return {
        "works": len(output.token_ids) == NEW_TOKENS,
        "load_s": loaded - begin,
        "generate_s": clock() - loaded,
        "text": output.text,
    }
