"""The planner's one question: which draft, how long a draft, what throughput, and how sure is that?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sonoran.errors import PlanError
from sonoran.models.source import open_model
from sonoran.planning.scaling.candidates import Candidate, Ranked, candidate_of, rank, speedup_range
from sonoran.planning.scaling.costs import PUBLISHED_COST, CostModel, MeasuredCost
from sonoran.planning.scaling.deployment import Deployment, deployments
from sonoran.planning.scaling.devices import DeviceCost
from sonoran.planning.scaling.estimate import alpha_from_means
from sonoran.planning.scaling.hidden import HiddenDrafting, compare_hidden
from sonoran.planning.scaling.laws import Anchor, Laws
from sonoran.planning.scaling.models import (
    KnownModel,
    anchored,
    drafts_for,
    find_model,
    published_alphas,
    published_laws,
)
from sonoran.planning.scaling.notes import Note, cost_extrapolations, extrapolations
from sonoran.planning.scaling.optimum import envelope, flat_range, smallest_draft
from sonoran.planning.scaling.quantities import (
    finite,
    format_count,
    open_unit,
    parameter_count,
    token_count,
    within,
)
from sonoran.planning.scaling.rates import SsdSettings, best_gamma, rates_by_size
from sonoran.planning.scaling.sensitivity import Bootstrap, Variant, best_size, bootstrap_size, variants
from sonoran.planning.scaling.size_law import LAW_RANGE, POWER_LAW, PUBLISHED_AFFINE
from sonoran.planning.scaling.throughput import GAMMAS, optimal_gamma
from sonoran.theory.distributions import Floats

DEFAULT_TOKENS = 15e12
"""Assumed training data where none is given; a factor of ten changes N* by about 4 %."""


TIE = 0.98
"""Speed-ups closer than this share are told apart by nothing that is known."""


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
    alpha_range: tuple[float, float]  # 95 % interval of a single pair
    speedup_range: tuple[float, float]  # speed-up at those two, whole K chosen anew


@dataclass(frozen=True, slots=True)
class RuleOfThumb:
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
    rules: tuple[RuleOfThumb, ...]
    variants: tuple[Variant, ...]
    hidden: HiddenDrafting | None
    candidates: tuple[Ranked, ...]
    best_candidate: str | None  # None: no candidates given, or none pays
    deployments: tuple[Deployment, ...]  # of the best candidate, else of the best size; empty without devices
    sentence: str
    notes: tuple[Note, ...]
    anchors: tuple[Anchor, ...] = ()  # measured pairs of this target, through which the laws were moved


def plan(
    target_params: float | None = None,
    *,
    target: str | None = None,
    target_tokens: float | None = None,
    draft_tokens: float | None = None,
    candidates: Sequence[Candidate | str] | None = None,
    laws: Laws | None = None,
    cost: CostModel = PUBLISHED_COST,
    hit_rate: float = 0.8,
    backup: str = "draft",
    target_perplexity: float | None = None,
    measured: Mapping[str, float | str] | None = None,
    price: float | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> Plan:
    """Plan the draft of one target.

    The target is ``target_params`` (parameters) with ``target_tokens`` (training tokens), or ``target``: a name of the
    built-in table, a GGUF file or a model folder. ``candidates`` are names of the table or Candidate objects; a named
    target without candidates is ranked against the smaller models of its tokenizer. ``measured`` maps drafts of the
    table to what was measured of them with this target: alpha, or tokens per round at a K as text (``5.03@6``). They
    and the candidates with an alpha move the acceptance law to this target. ``price`` is that of one device and hour,
    for costs by device. ``draws`` is the size of the bootstrap (0: none).

    Raises PlanError for impossible input. Everything extrapolated or assumed is listed in ``notes``.
    """
    within("draws", draws, 0, 100_000)
    within("seed", seed, 0, 2**63 - 1)
    settings = SsdSettings(hit_rate, backup)  # type: ignore[arg-type]
    chosen = laws or published_laws()
    model, m = _target(target_params, target)
    notes: list[Note] = []
    d_target = _tokens(
        "target", target_tokens, float(model.tokens) if model and model.tokens else None, notes
    )
    d_draft = _tokens("draft", draft_tokens, d_target, notes)
    if target_perplexity is not None and finite("target_perplexity", target_perplexity) <= 1:
        raise PlanError(f"target_perplexity must be above 1, got {target_perplexity:g}")
    entries = _candidates(candidates, model, measured or {})
    anchors = tuple(
        Anchor(c.parameters, c.tokens or d_draft, m, d_target, c.alpha)
        for c in entries
        if c.alpha is not None
    )
    # Alpha depends on the text: what was published of this target serves only where nothing was measured.
    known = published_alphas(model) if model and not anchors else {}
    chosen = anchored(chosen, anchors)
    if anchors:
        notes.append(
            Note(
                "anchored",
                f"alpha of all drafts is moved to {len(anchors)} measured pair{'s'[: len(anchors) > 1]} of this target",
            )
        )
    curve = throughput_curve(chosen, cost, m, d_target, d_draft)
    best = _optimum(chosen, cost, curve, m, d_target, d_draft, draws, seed)
    notes += extrapolations(chosen, m, d_target, best.parameters if best else None, d_draft)
    if best is not None:
        notes += cost_extrapolations(cost, best.parameters, best.num_speculative_tokens)
    if best is not None:
        half = chosen.half_width(best.draft_perplexity, best.target_perplexity)
        known_by = "moved to this target" if anchors else f"for all models (R2 {chosen.r2:.2f})"
        advice = "" if anchors else "; give what you measured of any draft of this target (--measured)"
        notes.append(
            Note(
                "scatter",
                f"one plane {known_by}: alpha of a pair lies within +-{half:.2f} of it in 95 %{advice}",
            )
        )
    if not _knows_size(cost):
        notes.append(
            Note(
                "one_draft",
                "the passes of one draft do not say what size costs, so no best size is given: measure a second "
                "draft, or give floor_ms, the milliseconds of the smallest possible one",
            )
        )
    entries = [
        replace(c, alpha=known[c.name], published=True) if c.alpha is None and c.name in known else c
        for c in entries
    ]
    ranked = rank(
        entries,
        anchored(chosen, tuple(_anchor(name, alpha, m, d_target) for name, alpha in known.items())),
        cost,
        settings,
        m,
        d_target,
        d_draft,
        target_perplexity=target_perplexity,
        tokenizer=model.tokenizer if model else None,
    )
    winner = next((r for r in ranked if r.pays and r.compatible is not False), None)
    answer = Plan(
        target=model.key if model else f"a {format_count(m)} target",
        target_parameters=m,
        target_tokens=d_target,
        draft_tokens=d_draft,
        cost_unit=cost.unit,
        laws_source=chosen.source,
        optimum=best,
        rules=_rules(curve, m, best.parameters) if best else (),
        variants=variants(chosen, cost, m, d_target, d_draft) if best else (),
        hidden=compare_hidden(chosen, cost, settings, m, d_target, d_draft) if best else None,
        candidates=ranked,
        best_candidate=winner.name if winner else None,
        deployments=_deployments(cost, settings, winner, best, m, price),
        sentence="",
        notes=tuple(notes),
        anchors=anchors,
    )
    return replace(answer, sentence=describe(answer))


def _deployments(
    cost: CostModel,
    settings: SsdSettings,
    winner: Ranked | None,
    best: Optimum | None,
    m: float,
    price: float | None,
) -> tuple[Deployment, ...]:
    if not isinstance(cost, DeviceCost):
        if price is not None:
            raise PlanError("a price needs devices: give --device (and --tp)")
        return ()
    if winner is not None and winner.alpha is not None:
        return deployments(cost, settings, winner.alpha, m, winner.parameters, price)
    return deployments(cost, settings, best.alpha, m, best.parameters, price) if best is not None else ()


def describe(answer: Plan) -> str:
    """The sentence that explains a plan."""
    best = answer.optimum
    if best is None:
        if any(note.code == "one_draft" for note in answer.notes):
            text = f"For {answer.target}, the passes of one draft give no best size."
        else:
            text = f"For {answer.target}, the law finds no draft size that pays: decode without speculation."
        return text + _winner(answer)
    sizes = [variant.parameters for variant in answer.variants] + [best.parameters]
    between = f"{format_count(min(sizes))} to {format_count(max(sizes))} under other assumptions"
    if best.interval is not None:
        ends = (format_count(best.interval.low), format_count(best.interval.high))
        between = f"{ends[0]} to {ends[1]} by the scatter of its data, {between}"
    low, high = best.within_1_percent
    # Parameters read are no time: no launch, no depth, no bandwidth is in them.
    over = (
        "times plain decoding"
        if answer.cost_unit == "ms"
        else "times the tokens of plain decoding per parameter read (no measure of time)"
    )
    text = (
        f"For {answer.target} trained on {format_count(answer.target_tokens)} tokens, the law puts the best draft "
        f"at {format_count(best.parameters)} parameters ({between}), 1/{best.ratio:.0f} of the target. With "
        f"K = {best.num_speculative_tokens} it predicts {best.integer_speedup:.2f} {over}; "
        f"any size from {format_count(low)} to {format_count(high)} stays within 1 % of that."
    )
    if answer.hidden is not None:
        ssd = answer.hidden.ssd
        rate = f"{answer.hidden.settings.hit_rate:.2g}"
        text += (
            f" If drafting hides behind verification (SSD, hit rate {rate}), the best draft is "
            f"{format_count(ssd.parameters)} and the prediction {ssd.speedup:.2f} times."
        )
    return text + _winner(answer)


def _winner(answer: Plan) -> str:
    """What the candidates come to, as the end of a sentence."""
    if not answer.candidates:
        return ""
    first = next((r for r in answer.candidates if r.name == answer.best_candidate), None)
    if first is None:
        if all(r.compatible is False for r in answer.candidates):
            return " None of the candidates can be used: their tokenizers differ from the target's."
        return " None of the candidates pays."
    text = f" Of the candidates, {first.name} comes first: {first.speedup:.2f} times with K = {first.gamma}"
    rivals = [
        r.name
        for r in answer.candidates
        if r is not first and r.pays and r.compatible is not False and r.speedup > TIE * first.speedup
    ]
    return text + (f" (as good as tied with {', '.join(rivals)})." if rivals else ".")


def throughput_curve(
    laws: Laws, cost: CostModel, target: float, target_tokens: float, draft_tokens: float
) -> Callable[[Floats], Floats]:
    """Best throughput by draft size (array [n] to array [n]): continuous gamma for the published cost, else
    whole.
    """
    if cost == PUBLISHED_COST:
        return lambda n: envelope(laws.loss, laws.law, target, target_tokens, n, draft_tokens)
    rate = rates_by_size(laws, cost, None, target, target_tokens, draft_tokens)
    return lambda n: rate(n[:, None], GAMMAS[None, :]).max(axis=1)


def _target(target_params: float | None, name: str | None) -> tuple[KnownModel | None, float]:
    if name is not None and target_params is None:
        if Path(name).suffix == ".gguf" or Path(name).exists():
            return _file(Path(name))
        model = find_model(name)
        return model, float(model.parameters)
    if name is not None or target_params is None:
        raise PlanError(
            "give the target as a number of parameters (70e9) or as a name (Qwen2.5/72B): exactly one of them"
        )
    return None, parameter_count("target_params", target_params)


def _file(path: Path) -> tuple[KnownModel | None, float]:
    """A model file's parameters, and the model of the table that its name and size say it is. Raises ModelError."""
    opened = open_model(path)
    parameters = float(sum(math.prod(tensor.shape) for tensor in opened.tensors.values()))
    try:
        model = find_model(path.name)
    except PlanError:
        return None, parameters
    # Files may leave out an output matrix that is tied to the embedding, or hold it twice.
    return (
        (model, float(model.parameters)) if 0.8 < parameters / model.parameters < 1.25 else (None, parameters)
    )


def _tokens(role: str, given: float | None, fallback: float | None, notes: list[Note]) -> float:
    if given is not None:
        return token_count(f"{role}_tokens", given)
    if fallback is None:
        notes.append(
            Note(
                "target_tokens_assumed",
                f"training tokens of the target are not given: {format_count(DEFAULT_TOKENS)} assumed",
            )
        )
        return DEFAULT_TOKENS
    if role == "draft":
        notes.append(
            Note(
                "draft_tokens_assumed",
                f"training tokens of the draft are not given: the target's {format_count(fallback)} assumed",
            )
        )
    return fallback


def _candidates(
    given: Sequence[Candidate | str] | None, model: KnownModel | None, measured: Mapping[str, float | str]
) -> list[Candidate]:
    if given is None:
        entries = [candidate_of(draft) for draft in drafts_for(model)] if model else []
    else:
        entries = [candidate_of(find_model(c)) if isinstance(c, str) else c for c in given]
    for name, value in measured.items():
        entry = next((c for c in entries if c.name == name), None) or candidate_of(find_model(name))
        entries = [c for c in entries if c.name != entry.name]
        entries.append(replace(entry, alpha=measured_alpha(name, value)))
    return entries


def measured_alpha(name: str, value: float | str) -> float:
    """Alpha from a number, or from tokens per round at a draft length: ``5.03@6``. Raises PlanError."""
    if not isinstance(value, str) or "@" not in value:
        return open_unit(f"measured {name}: alpha", value)  # type: ignore[arg-type]
    tokens, _, length = value.partition("@")
    k = within(f"measured {name}: K", finite(f"measured {name}: K", length), 1, 64)  # type: ignore[arg-type]
    if k != int(k):
        raise PlanError(f"measured {name}: K must be a whole number, got {length!r}")
    mean = finite(f"measured {name}: tokens per round", tokens) - 1.0  # type: ignore[arg-type]
    if not 0.0 < mean < k:
        raise PlanError(
            f"measured {name}: tokens per round at K = {k:g} lie between 1 and {k + 1:g}, got {tokens}"
        )
    return alpha_from_means({int(k): mean})


def _anchor(draft: str, alpha: float, target: float, target_tokens: float) -> Anchor:
    model = find_model(draft)
    return Anchor(float(model.parameters), float(model.tokens or target_tokens), target, target_tokens, alpha)


def _knows_size(cost: CostModel) -> bool:
    return not isinstance(cost, MeasuredCost) or cost.knows_size


def _optimum(
    laws: Laws,
    cost: CostModel,
    curve: Callable[[Floats], Floats],
    m: float,
    d_target: float,
    d_draft: float,
    draws: int,
    seed: int,
) -> Optimum | None:
    if not _knows_size(cost):
        return None
    n = best_size(laws, cost, m, d_target, d_draft)
    plain = float(cost.verify(m, 0.0))
    if not np.isfinite(n) or float(curve(np.array([n]))[0]) * plain <= 1.0:
        return None
    alpha = float(laws.alpha(m, d_target, n, d_draft))
    k, best = best_gamma(cost, None, alpha, m, n)
    peak = float(curve(np.array([n]))[0])
    x, y = float(laws.loss.perplexity(n, d_draft)), float(laws.loss.perplexity(m, d_target))
    half = laws.half_width(x, y)
    ends = (max(alpha - half, 1e-6), min(alpha + half, 1 - 1e-6))
    ranges = [flat_range(curve, n, float(smallest_draft(m)), m * (1 - 1e-9), share) for share in (0.99, 0.95)]
    return Optimum(
        parameters=n,
        ratio=m / n,
        alpha=alpha,
        draft_perplexity=x,
        target_perplexity=y,
        gamma=float(optimal_gamma(alpha, m, n)) if cost == PUBLISHED_COST else float(k),
        throughput=peak,
        speedup=peak * plain,
        num_speculative_tokens=k,
        integer_speedup=best,
        within_1_percent=ranges[0],
        within_5_percent=ranges[1],
        interval=bootstrap_size(laws, cost, m, d_target, d_draft, draws=draws, seed=seed),
        alpha_range=ends,
        speedup_range=speedup_range(cost, alpha, half, m, n),
    )


def _rules(curve: Callable[[Floats], Floats], m: float, best: float) -> tuple[RuleOfThumb, ...]:
    factor, exponent = POWER_LAW
    inside = LAW_RANGE[0] <= m <= LAW_RANGE[1]
    sizes = (
        ("N = 0.00271 M + 87.1M (published line)", float(PUBLISHED_AFFINE.size(m)), inside),
        ("N = M / 200 (the paper's headline)", m / 200.0, inside),
        ("N = 154.4 M^0.578 (power law on the same optima)", factor * m**exponent, True),
    )
    peak = float(curve(np.array([best]))[0])
    kept = [max(float(curve(np.array([n]))[0]), 0.0) / peak for _, n, _ in sizes]
    return tuple(
        RuleOfThumb(name, n, n / best - 1.0, k, ok) for (name, n, ok), k in zip(sizes, kept, strict=True)
    )
