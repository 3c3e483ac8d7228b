"""Ranking of real drafts for one target, with "none of them pays" as a possible answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sonoran.errors import PlanError, nearest, shown
from sonoran.models.untrusted import parse_json, refusing
from sonoran.planning.scaling.costs import CostModel
from sonoran.planning.scaling.devices import DeviceCost
from sonoran.planning.scaling.laws import Laws
from sonoran.planning.scaling.models import KnownModel, find_model
from sonoran.planning.scaling.quantities import finite, open_unit, parameter_count, token_count
from sonoran.planning.scaling.rates import SsdSettings, best_gamma

_KEYS = ("name", "parameters", "tokens", "alpha", "perplexity")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A draft that could be used. A measured ``alpha`` wins over a measured ``perplexity``, that over the
    loss law.
    """

    name: str
    parameters: float
    tokens: float | None = None
    alpha: float | None = None
    perplexity: float | None = None
    tokenizer: str | None = None
    published: bool = False  # alpha was measured by others, on their text


@dataclass(frozen=True, slots=True)
class Ranked:
    """Prediction for one candidate; gamma 0 with speed-up 1: plain decoding is as good or better."""

    name: str
    parameters: float
    ratio: float  # target / draft
    alpha: float | None
    alpha_source: str  # measured | published | perplexity | anchored | law
    gamma: int
    speedup: float
    speedup_range: (
        tuple[float, float] | None
    )  # at the ends of alpha's 95 % interval and of what devices are off
    ssd_gamma: int
    ssd_speedup: float
    pays: bool
    compatible: bool | None  # same tokenizer as the target; None when unknown
    note: str = ""


def candidate_of(model: KnownModel) -> Candidate:
    """A candidate from the built-in table."""
    return Candidate(model.key, float(model.parameters), model.tokens, tokenizer=model.tokenizer)


@refusing("candidates", PlanError)
def parse_candidates(text: str) -> list[Candidate]:
    """Read a JSON list of names from the table and of objects with name, parameters, tokens, alpha,
    perplexity.
    """
    value = parse_json(text, PlanError)
    if not isinstance(value, list) or not value:
        raise PlanError("candidates must be a JSON list of names or objects, with at least one entry")
    found = [_candidate(number, item) for number, item in enumerate(value, 1)]
    for name, times in Counter(candidate.name for candidate in found).items():
        if times > 1:
            raise PlanError(f"candidate {name!r} is given {times} times")
    return found


def _candidate(number: int, item: Any) -> Candidate:
    if isinstance(item, str):
        return candidate_of(find_model(item))
    where = f"candidate {number}"
    if not isinstance(item, Mapping):
        raise PlanError(f"{where} must be a name or an object, got {shown(item)}")
    for key in item:
        if key not in _KEYS:
            raise PlanError(f"{where}: unknown key {key!r}{nearest(str(key), _KEYS)}")
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise PlanError(f"{where} needs a 'name'")
    base = Candidate(name, 0.0) if "parameters" in item else candidate_of(find_model(name))
    size = (
        parameter_count(f"{name}: parameters", item["parameters"])
        if "parameters" in item
        else base.parameters
    )
    data = base.tokens if item.get("tokens") is None else token_count(f"{name}: tokens", item["tokens"])
    alpha = None if item.get("alpha") is None else open_unit(f"{name}: alpha", item["alpha"])
    perplexity = None if item.get("perplexity") is None else finite(f"{name}: perplexity", item["perplexity"])
    if perplexity is not None and perplexity <= 1:
        raise PlanError(f"{name}: perplexity must be above 1, got {perplexity:g}")
    return Candidate(name, size, data, alpha, perplexity, base.tokenizer)


def rank(
    candidates: list[Candidate],
    laws: Laws,
    cost: CostModel,
    settings: SsdSettings,
    target: float,
    target_tokens: float,
    draft_tokens: float,
    *,
    target_perplexity: float | None = None,
    tokenizer: str | None = None,
) -> tuple[Ranked, ...]:
    """Candidates by predicted SD speed-up, best first; those that cannot be used come last.

    ``draft_tokens`` stands in where a candidate's own training tokens are unknown.
    """
    ranked = [
        _rank_one(c, laws, cost, settings, target, target_tokens, draft_tokens, target_perplexity, tokenizer)
        for c in candidates
    ]
    return tuple(sorted(ranked, key=lambda r: (r.compatible is False, not r.pays, -r.speedup, r.parameters)))


def _rank_one(
    candidate: Candidate,
    laws: Laws,
    cost: CostModel,
    settings: SsdSettings,
    target: float,
    target_tokens: float,
    draft_tokens: float,
    target_perplexity: float | None,
    tokenizer: str | None,
) -> Ranked:
    size = candidate.parameters
    compatible = (
        None if tokenizer is None or candidate.tokenizer is None else candidate.tokenizer == tokenizer
    )
    alpha, half, source = _alpha(candidate, laws, target, target_tokens, draft_tokens, target_perplexity)
    notes = [] if compatible is not False else ["tokenizer differs from the target's"]
    if candidate.tokens is None and source in ("law", "anchored"):
        notes.append("training tokens unknown: those of the plan are assumed")
    if size >= target:
        notes.append("not smaller than the target")
    if not 0 < alpha < 1:
        notes.append(f"the law gives alpha {alpha:.3g}, outside (0, 1)")
    if size >= target or not 0 < alpha < 1:
        shown = alpha if 0 < alpha < 1 else None
        unusable = (0, 1.0, None, 0, 1.0, False)
        return Ranked(
            candidate.name, size, target / size, shown, source, *unusable, compatible, "; ".join(notes)
        )
    gamma, speedup = _best(cost, None, alpha, target, size)
    ssd_gamma, ssd_speedup = _best(cost, settings, alpha, target, size)
    spread = None
    if half is not None or isinstance(cost, DeviceCost):
        spread = speedup_range(cost, alpha, half, target, size)
        if gamma > 0 and spread[0] <= 1.0:
            notes.append("may not pay: the interval of alpha reaches speed-up 1")
    pays = gamma > 0 and speedup > 1.0
    if not pays:
        notes.append("does not pay")
    return Ranked(
        candidate.name,
        size,
        target / size,
        alpha,
        source,
        gamma,
        speedup,
        spread,
        ssd_gamma,
        ssd_speedup,
        pays,
        compatible,
        "; ".join(notes),
    )


def speedup_range(
    cost: CostModel, alpha: float, half: float | None, target: float, size: float
) -> tuple[float, float]:
    """SD's speed-up with the best K at the ends of alpha's interval, and of what a device's passes may be off."""
    costs = cost.bounds() if isinstance(cost, DeviceCost) else (cost, cost)
    ends = [min(max(alpha + sign * (half or 0.0), 1e-6), 1 - 1e-6) for sign in (-1, 1)]
    low, high = (_best(of, None, end, target, size)[1] for of, end in zip(costs, ends, strict=True))
    return low, high


def _alpha(
    candidate: Candidate,
    laws: Laws,
    target: float,
    target_tokens: float,
    draft_tokens: float,
    y: float | None,
) -> tuple[float, float | None, str]:
    """Alpha, half of its 95 % interval (None: measured), and where it comes from."""
    if candidate.alpha is not None:
        return candidate.alpha, None, "published" if candidate.published else "measured"
    if candidate.perplexity is not None:
        if y is None:
            raise PlanError(
                f"{candidate.name} has a measured perplexity: the target's is needed too "
                "(--target-perplexity)"
            )
        alpha = float(laws.acceptance.alpha(candidate.perplexity, y))
        return alpha, laws.scatter.half_width(candidate.perplexity, y), "perplexity"
    data = draft_tokens if candidate.tokens is None else candidate.tokens
    x, y = (
        float(laws.loss.perplexity(*of)) for of in ((candidate.parameters, data), (target, target_tokens))
    )
    return float(laws.law.alpha(x, y)), laws.half_width(x, y), "anchored" if laws.anchors else "law"


def _best(
    cost: CostModel, settings: SsdSettings | None, alpha: float, target: float, size: float
) -> tuple[int, float]:
    """Best whole gamma and its speed-up; 0 and 1 where plain decoding is as good."""
    gamma, speedup = best_gamma(cost, settings, alpha, target, size)
    return (gamma, speedup) if speedup > 1.0 else (0, 1.0)
