"""What a plan says: its data, and the sentence that explains it."""

from __future__ import annotations

from dataclasses import dataclass

from sonoran.planner.candidates import Ranked
from sonoran.planner.notes import Note, size
from sonoran.planner.sensitivity import Variant
from sonoran.planner.ssd import HiddenDrafting
from sonoran.planner.uncertainty import Bootstrap


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best draft size. ``gamma`` is continuous as in the paper, ``num_speculative_tokens`` is the whole K
    to use.
    """

    parameters: float
    ratio: float  # target / draft
    alpha: float
    draft_perplexity: float
    target_perplexity: float
    gamma: float
    throughput: float  # tokens per unit of cost at gamma
    speedup: float  # over AR, at gamma
    num_speculative_tokens: int
    integer_speedup: float
    within_1_percent: tuple[float, float]
    within_5_percent: tuple[float, float]
    interval: Bootstrap | None
    alpha_range: tuple[float, float]  # 95 % scatter of a single pair around the law
    speedup_range: tuple[float, float]  # speed-up at those two, whole K chosen anew


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of thumb against the full optimum: relative error of N*, and the share of T* that it keeps."""

    name: str
    parameters: float
    relative_error: float
    throughput_kept: float
    in_range: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """Answer of ``plan``. ``optimum`` and ``hidden`` are None when no draft of any size would pay."""

    target: str
    target_parameters: float
    target_tokens: float
    draft_tokens: float
    cost_unit: str
    laws_source: str
    optimum: Optimum | None
    rules: tuple[Rule, ...]
    variants: tuple[Variant, ...]
    hidden: HiddenDrafting | None
    candidates: tuple[Ranked, ...]
    best_candidate: str | None  # None: no candidates given, or none pays
    sentence: str
    notes: tuple[Note, ...]


def describe(answer: Plan) -> str:
    """The sentence that explains a plan."""
    best = answer.optimum
    if best is None:
        text = f"For {answer.target}, the law finds no draft size that pays: decode without speculation."
        return text + (
            " None of the candidates pays." if answer.candidates and not answer.best_candidate else ""
        )
    sure = ""
    if best.interval is not None:
        sure = f" (95 %: {size(best.interval.low)} to {size(best.interval.high)})"
    low, high = best.within_1_percent
    text = (
        f"For {answer.target} trained on {size(answer.target_tokens)} tokens, the law puts the best draft "
        f"at {size(best.parameters)} parameters{sure}, 1/{best.ratio:.0f} of the target. With "
        f"K = {best.num_speculative_tokens} it predicts {best.integer_speedup:.2f} times plain decoding; "
        f"any size from {size(low)} to {size(high)} stays within 1 % of that."
    )
    if answer.hidden is not None:
        ssd = answer.hidden.ssd
        rate = f"{answer.hidden.settings.hit_rate:.2g}"
        text += (
            f" If drafting hides behind verification (SSD, hit rate {rate}), the best draft is "
            f"{size(ssd.parameters)} and the prediction {ssd.speedup:.2f} times."
        )
    if answer.candidates:
        row = next((r for r in answer.candidates if r.name == answer.best_candidate), None)
        if row is None:
            return text + " None of the candidates pays."
        text += f" Of the candidates, {row.name} comes first: {row.speedup:.2f} times with K = {row.gamma}."
    return text
