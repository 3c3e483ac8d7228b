"""From a prediction to the options of an engine that does what was predicted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sonoran.calibrate.predict import Prediction
from sonoran.calibrate.profile import ModelKey
from sonoran.config import METHOD_KEYS


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Keywords of ``LLM``, and its ``speculative_config`` (None for AR)."""

    engine: dict[str, Any]
    speculative: dict[str, Any] | None
    placement: str = field(default="")


def engine_options(
    p: Prediction,
    *,
    draft: str | None,
    target_key: ModelKey,
    draft_key: ModelKey | None,
    verification: str = "coupled",
) -> EngineOptions:
    """Return how to run a prediction; ``draft`` is the draft's path or name."""
    engine: dict[str, Any] = {"cores": p.placement.target_cores}
    if target_key.quantize is not None:
        engine["quantize"] = target_key.quantize
    if p.mode == "ar" or draft is None or draft_key is None:
        return EngineOptions(engine, None, str(p.placement))
    speculative: dict[str, Any] = {
        "method": "draft_model" if p.mode == "sd" else "ssd",
        "model": draft,
        "num_speculative_tokens": p.num_speculative_tokens,
        "verification": verification,
    }
    speculative["quantize"] = draft_key.quantize or "file"
    if draft_key.draft_vocab is not None:
        speculative["draft_vocab"] = draft_key.draft_vocab
    speculative["least_chance"] = 0.0  # exactly what was predicted: every speculation has K tokens
    if p.mode == "ssd":
        speculative |= {"budget": p.budget, "backup": p.backup}
        speculative["cores"] = p.placement.draft_cores
    return EngineOptions(engine, speculative, str(p.placement))


def can_run(p: Prediction) -> bool:
    """Whether this version of the engine knows the prediction's mode."""
    return p.mode != "ssd" or "ssd" in METHOD_KEYS
