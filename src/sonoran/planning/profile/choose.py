"""The decision: the fastest exact configuration, and why, in one line. "Do not speculate" is an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sonoran.errors import PlanError
from sonoran.planning.profile.predict import Prediction, Workload, curve_at, predict_all
from sonoran.planning.profile.profile import Cores, ModelKey, PassCurve, PassPoint, Profile, Timing
from sonoran.planning.scaling.costs import DraftLatency, MeasuredCost
from sonoran.planning.scaling.hidden import HiddenDrafting, compare_hidden
from sonoran.planning.scaling.models import published_laws
from sonoran.planning.scaling.planning import DEFAULT_TOKENS
from sonoran.planning.scaling.rates import SsdSettings

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


WORTH_SAYING = 0.03


@dataclass(frozen=True, slots=True)
class Advice:
    """One change, the predicted speed after it, and that speed over today's best."""

    what: str
    tokens_per_s: float
    gain: float


def advise(
    profile: Profile, workload: Workload, *, k_values: Sequence[int] = (1, 2, 3, 4, 5, 6, 8)
) -> list[Advice]:
    """Return changes that would gain at least 3 %, the largest gain first; empty without a draft. Raises PlanError."""
    if not profile.acceptance:
        return []
    budgets = (2, 4, 8, 16)

    def best(changed: Profile) -> Prediction:
        return choose(predict_all(changed, workload, k_values=k_values, budgets=budgets)).best

    today = best(profile)
    changes: list[tuple[str, Profile]] = [
        ("a draft with passes half as long, accepted as often (smaller, int3, or --draft-vocab 32768)",
         _faster_draft(profile, 0.5)),
        ("passes of several rows at the price of one row (a target that is limited by memory alone)",
         _flat_target(profile)),
    ]  # fmt: skip
    if len(profile.key.machine.cores) == 1:
        changes.append(("a second core, for the draft alone (SSD)", _second_core(profile)))
    found = []
    for what, changed in changes:
        p = best(changed)
        gain = p.tokens_per_s / today.tokens_per_s
        if gain >= 1.0 + WORTH_SAYING:
            found.append(Advice(f"{what}: {p.label}", p.tokens_per_s, gain))
    return sorted(found, key=lambda a: -a.gain)


def draft_size(
    profile: Profile, workload: Workload, hit_rate: float, backup: str = "draft"
) -> HiddenDrafting | None:
    """Return the planner's best draft of SD and of SSD for the measured costs; None when no draft helps.

    The acceptance of drafts of other sizes follows the published scaling law, not this pair's measurements.
    Raises PlanError without a draft.
    """
    if profile.key.draft is None:
        raise PlanError("sizing a draft needs a profile with a draft: its passes tell what size costs")
    cores, split = profile.key.machine.cores, _split(profile)
    target_cores, draft_cores = split or (cores, cores)
    target = curve_at(
        profile.passes, "target", target_cores, draft_cores if split else None, workload.context
    )
    draft = curve_at(profile.passes, "draft", draft_cores, target_cores if split else None, workload.context)
    cost = MeasuredCost(target, (DraftLatency(float(profile.key.draft.parameters), draft),))
    return compare_hidden(
        published_laws(),
        cost,
        SsdSettings(hit_rate, "none" if backup == "none" else "draft"),
        float(profile.key.target.parameters),
        DEFAULT_TOKENS,
        DEFAULT_TOKENS,
    )


def _split(profile: Profile) -> tuple[Cores, Cores] | None:
    for curve in profile.passes:
        if curve.role == "target" and curve.beside is not None:
            return curve.cores, curve.beside
    return None


def _faster_draft(profile: Profile, factor: float) -> Profile:
    return replace(
        profile, passes=tuple(_scaled(c, factor) if c.role == "draft" else c for c in profile.passes)
    )


def _flat_target(profile: Profile) -> Profile:
    return replace(profile, passes=tuple(_flat(c) if c.role == "target" else c for c in profile.passes))


def _second_core(profile: Profile) -> Profile:
    """Pretend a second core as fast as the first, whose work does not disturb it."""
    [core] = profile.key.machine.cores
    other = (core + 1,)
    extra: list[PassCurve] = []
    for c in profile.passes:
        if c.beside is None and c.role == "target":
            extra.append(replace(c, beside=other))
        elif c.beside is None:
            extra += [replace(c, cores=other, beside=(core,)), replace(c, cores=other)]
    return replace(profile, passes=(*profile.passes, *extra))


def _scaled(curve: PassCurve, factor: float) -> PassCurve:
    points = (PassPoint(p.rows, replace(p.time, ms=p.time.ms * factor)) for p in curve.points)
    return replace(curve, points=tuple(points))


def _flat(curve: PassCurve) -> PassCurve:
    first = min(curve.points, key=lambda p: p.rows).time
    return replace(
        curve,
        points=tuple(PassPoint(p.rows, Timing(first.ms, first.spread, first.count)) for p in curve.points),
    )


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
    return EngineOptions(engine, speculative, str(p.placement))
