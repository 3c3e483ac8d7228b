"""The decision: the fastest exact configuration, and why, in one line. "Do not speculate" is an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sonoran.errors import PlanError
from sonoran.planning.profile.predict import Prediction
from sonoran.planning.profile.profile import ModelKey

WORTH_IT = 0.03
"""Speculation must promise this much over AR: less is within what predictions miss."""

AS_GOOD = 0.01
"""Within this share of the best, the simpler configuration is taken."""

_ORDER = {"ar": 0, "sd": 1, "ssd": 2}


@dataclass(frozen=True, slots=True)
class Choice:
    """``best`` is what to run, ``reason`` one line about it; ``by_mode`` the best prediction of each mode."""

    best: Prediction
    reason: str
    by_mode: dict[str, Prediction]

    @property
    def gain(self) -> float:
        """Return the predicted speed relative to the best AR."""
        return self.best.tokens_per_s / self.by_mode["ar"].tokens_per_s


def choose(predictions: Sequence[Prediction], *, worth_it: float = WORTH_IT) -> Choice:
    """Take the best of the predictions of one workload (see ``predict_all``). Raises PlanError without AR."""
    by_mode: dict[str, Prediction] = {}
    for p in sorted(predictions, key=lambda p: -p.tokens_per_s):
        by_mode.setdefault(p.mode, p)
    if "ar" not in by_mode:
        raise PlanError("there is no prediction of autoregressive decoding to compare with")
    plain = by_mode["ar"]
    rivals = [p for p in predictions if p.mode != "ar"]
    if not rivals:
        return Choice(
            plain, f"AR on {plain.placement}: {_rate(plain)}; there is no draft to speculate with", by_mode
        )
    fastest = max(rivals, key=lambda p: p.tokens_per_s)
    if fastest.tokens_per_s < (1.0 + worth_it) * plain.tokens_per_s:
        return Choice(plain, _no(fastest, plain, worth_it), by_mode)
    best = min(
        (p for p in rivals if p.tokens_per_s >= (1.0 - AS_GOOD) * fastest.tokens_per_s),
        key=lambda p: (_ORDER[p.mode], p.num_speculative_tokens, p.budget, -p.tokens_per_s),
    )
    return Choice(best, _yes(best, plain, by_mode), by_mode)


def _rate(p: Prediction) -> str:
    return f"{p.tokens_per_s:.1f} tokens/s predicted"


def _yes(best: Prediction, plain: Prediction, by_mode: dict[str, Prediction]) -> str:
    text = f"{best.label}: {_rate(best)}, {best.tokens_per_s / plain.tokens_per_s:.2f}x AR"
    if best.mode == "ssd":
        if "sd" in by_mode:
            text += f" (SD {by_mode['sd'].tokens_per_s / plain.tokens_per_s:.2f}x)"
        verb = "fits behind" if best.hidden else "outlasts"
        text += (
            f"; drafting ({best.draft_ms or 0.0:.0f} ms) {verb} verification ({best.verify_ms:.0f} ms), "
            f"hit rate {best.hit_rate or 0.0:.2f}"
        )
    else:
        text += (
            f"; {best.tokens_per_round:.2f} tokens per verification of {best.verify_ms:.0f} ms pay for "
            f"{best.draft_ms or 0.0:.0f} ms of drafting"
        )
        if "ssd" in by_mode:
            text += f" (SSD {by_mode['ssd'].tokens_per_s / plain.tokens_per_s:.2f}x)"
    return text


def _no(fastest: Prediction, plain: Prediction, worth_it: float) -> str:
    ratio = fastest.tokens_per_s / plain.tokens_per_s
    needed = fastest.round_ms / plain.round_ms
    return (
        f"do not speculate: AR on {plain.placement}, {_rate(plain)}; the best speculation ({fastest.label}) is "
        f"{ratio:.2f}x that (it must reach {1.0 + worth_it:.2f}x): a round costs {needed:.2f} tokens' time and "
        f"yields {fastest.tokens_per_round:.2f} tokens"
    )


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Keywords of ``LLM``, and its ``speculative_config`` (None for AR)."""

    engine: dict[str, Any]
    speculative: dict[str, Any] | None


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
        return EngineOptions(engine, None)
    speculative: dict[str, Any] = {
        "method": p.mode,
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
    return EngineOptions(engine, speculative)
