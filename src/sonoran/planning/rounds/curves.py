"""What the pictures of a simulation show, as numbers: throughput by batch, hits by budget, speed by acceptance and K."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sonoran.errors import PlanError, nearest
from sonoran.planning.rounds.behaviour import Behaviour
from sonoran.planning.rounds.costs import Costs
from sonoran.planning.rounds.formulas import extrapolations, predict
from sonoran.planning.rounds.plan import RoundMode, RoundPlan
from sonoran.planning.rounds.presets import Preset, Scenario
from sonoran.planning.rounds.search import best_plans, spread
from sonoran.ssd.fan_out import geometric, uniform
from sonoran.theory.speedup import tokens_from_lengths, tokens_per_round

BATCHES = (1, 2, 4, 8, 16)
BUDGETS = (4, 6, 8, 12, 16, 24, 32, 48)
ALPHAS = tuple(round(float(a), 3) for a in np.linspace(0.4, 0.95, 23))
RULES = ("uniform", "geometric", "measured")
MODES: tuple[RoundMode, ...] = ("ar", "sd", "ssd")


@dataclass(frozen=True, slots=True)
class Point:
    """A mode at a batch size: tokens per second of the whole batch and of one sequence.

    ``beyond``: a pass has more rows than were measured, so its time is assumed.
    """

    mode: str
    batch: int
    tokens_per_s: float
    beyond: bool = False

    @property
    def per_sequence(self) -> float:
        """Tokens per second that one of the sequences sees."""
        return self.tokens_per_s / self.batch


@dataclass(frozen=True, slots=True)
class Speedups:
    """Speed over AR of SD and SSD along some axis; a published or measured point has its mode's value alone."""

    x: float
    sd: float | None
    ssd: float | None


@dataclass(frozen=True, slots=True)
class Study:
    """All that one page of pictures shows; ``last`` is the speed-up over ``last_axis``: temperature where it is known,
    else K."""

    name: str
    frontier: list[Point]
    published: list[Point]
    hits: dict[str, list[tuple[int, float]]]
    published_hits: list[tuple[int, float]]
    num_speculative_tokens: int
    by_alpha: list[Speedups]
    published_alpha: list[Speedups]
    last_axis: str
    last: list[Speedups]
    published_last: list[Speedups]
    notes: tuple[str, ...] = ()
    measured: tuple[Point, ...] = ()


def frontier(
    plans: Callable[[int], Mapping[str, RoundPlan]],
    costs: Costs,
    behaviour: Behaviour,
    batches: Sequence[int] = BATCHES,
) -> list[Point]:
    """Return every mode at every batch size, by the closed form. Raises PlanError."""
    return [
        Point(mode, batch, predict(plan, costs, behaviour).tokens_per_s, bool(extrapolations(plan, costs)))
        for batch in batches
        for mode, plan in plans(batch).items()
    ]


def hits_by_budget(
    behaviour: Behaviour,
    costs: Costs,
    num_speculative_tokens: int,
    exponent: float,
    budgets: Sequence[int] = BUDGETS,
) -> dict[str, list[tuple[int, float]]]:
    """Return (budget, hit rate) of the fan-out rules, backup draft, all origins together (Eq. 1). Raises PlanError.

    ``geometric`` (Theorem 12) is told the mean acceptance and the exponent, ``measured`` (Theorem 18) all there is.
    """
    k = num_speculative_tokens
    tokens = tokens_from_lengths(behaviour.lengths("primary", k))
    alpha = equivalent_alpha(tokens, k)
    lists: dict[str, Callable[[int], Sequence[int]]] = {
        "uniform": lambda budget: uniform(budget, k),
        "geometric": lambda budget: geometric(budget, k, alpha, exponent),
        "measured": lambda budget: spread(behaviour, budget, k),
    }
    return {
        rule: [
            (budget, predict(RoundPlan("ssd", k, 1, tuple(of(budget))), costs, behaviour).hit_rate or 0.0)
            for budget in budgets
        ]
        for rule, of in lists.items()
    }


def equivalent_alpha(tokens: float, num_speculative_tokens: int) -> float:
    """Return the constant chance of acceptance that yields so many tokens per round at K. Raises PlanError."""
    k = num_speculative_tokens
    if not 1.0 <= tokens <= k + 1.0:
        raise PlanError(f"{tokens!r} tokens per round are impossible with K = {k}: between 1 and {k + 1}")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if tokens_per_round(middle, k) < tokens else (low, middle)
    return 0.5 * (low + high)


def speedups(x: float, plans: Mapping[str, RoundPlan], costs: Costs, behaviour: Behaviour) -> Speedups:
    """Return SD and SSD over AR at a place of an axis. Raises PlanError."""
    ar, sd, ssd = (predict(plans[mode], costs, behaviour).tokens_per_s for mode in MODES)
    return Speedups(x, sd / ar, ssd / ar)


def study_passes(costs: Costs, alpha: float, exponent: float, name: str = "passes of your own") -> Study:
    """Return the pictures of passes that are given: every point has the best K, budget and backup. Raises PlanError."""

    def of(rate: float) -> Behaviour:
        return Behaviour.power_law((rate,), exponent)

    behaviour = of(alpha)
    plans = {b: {m: f.plan for m, f in best_plans(costs, behaviour, batch=b).items()} for b in BATCHES}
    by_alpha, by_k = [], []
    for rate in ALPHAS:
        best = best_plans(costs, of(rate))
        by_alpha.append(speedups(rate, {m: f.plan for m, f in best.items()}, costs, of(rate)))
    for k in range(1, 13):
        best = best_plans(costs, behaviour, ks=(k,))
        by_k.append(speedups(k, {m: f.plan for m, f in best.items()}, costs, behaviour))
    k = plans[1]["ssd"].num_speculative_tokens
    return Study(
        name,
        frontier(lambda batch: plans[batch], costs, behaviour),
        [],
        hits_by_budget(behaviour, costs, k, exponent),
        [],
        k,
        by_alpha,
        [],
        "K, most tokens of a speculation",
        by_k,
        [],
        (f"Acceptance {alpha:g} at every position; every point has the best K, budget and backup.",),
    )


def study_preset(preset: Preset) -> Study:
    """Return the pictures of a preset's systems at their published settings, and what was published. Raises PlanError."""
    base = _base(preset)
    costs, behaviour = preset.costs(base), preset.behaviour(base)
    alike = [s for s in preset.scenarios if _setting(s) == _setting(base)]
    greedy = [s for s in alike if s.temperature == base.temperature]
    by_alpha, published_alpha = _by_alpha(preset, base)
    temperatures = {s.temperature for s in alike}
    if len(temperatures) > 1:
        axis = "temperature"
        chosen = list({s.temperature: s for s in alike if s.name.startswith("temperature")}.values())
    else:
        axis = f"K of SSD (SD with K = {base.sd_k})"
        chosen = _by_k(preset, base)
    last, published_last = [], []
    for s in chosen:
        x = s.temperature if axis == "temperature" else s.ssd_k
        last.append(speedups(x, s.plans(), preset.costs(s), preset.behaviour(s)))
        ar = s.published.get(
            "ar", predict(s.plans()["ar"], preset.costs(s), preset.behaviour(s)).tokens_per_s
        )
        published_last.append(_published(x, s, ar))
    if len(last) < 2:
        axis, published_last = "K, most tokens of a speculation", []
        budget = sum(base.fan_out)
        last = [
            speedups(
                k,
                replace(base, sd_k=k, ssd_k=k, fan_out=spread(behaviour, budget, k)).plans(),
                costs,
                behaviour,
            )
            for k in range(1, 13)
        ]
    return Study(
        preset.name,
        frontier(lambda batch: replace(base, batch=batch).plans(), costs, behaviour),
        [
            Point(mode, s.batch, s.published[mode])
            for s in greedy
            for mode in MODES
            if mode in s.published and (s.batch == 1 or s.name.startswith("batch"))
        ],
        hits_by_budget(behaviour, costs, base.ssd_k, base.rejected_exponent),
        sorted({(sum(s.fan_out), s.published["hit_rate"]) for s in greedy if "hit_rate" in s.published}),
        base.ssd_k,
        by_alpha,
        published_alpha,
        axis,
        last,
        published_last,
        (preset.description, *preset.notes),
    )


def _setting(scenario: Scenario) -> tuple[object, ...]:
    return (scenario.system, scenario.sd_k, scenario.ssd_k, scenario.fan_out, scenario.backup)


def _base(preset: Preset) -> Scenario:
    """The scenario that the others vary: of the system with most batch sizes the one of batch 1 that says most."""
    batches = {
        system: len({s.batch for s in preset.scenarios if s.system == system}) for system in preset.systems
    }
    system = max(batches, key=lambda name: batches[name])
    mine = [s for s in preset.scenarios if s.system == system]
    alike = {_setting(s): sum(_setting(other) == _setting(s) for other in mine) for s in mine}
    return max(mine, key=lambda s: (s.batch == 1, s.temperature == 0.0, alike[_setting(s)], len(s.published)))


def _by_k(preset: Preset, base: Scenario) -> list[Scenario]:
    found = [
        s for s in preset.scenarios
        if s.system == base.system and s.batch == base.batch and s.temperature == base.temperature and s.published
    ]  # fmt: skip
    return sorted({s.ssd_k: s for s in found}.values(), key=lambda s: s.ssd_k)


def _by_alpha(preset: Preset, base: Scenario) -> tuple[list[Speedups], list[Speedups]]:
    """Curves of the system whose data sets were published, and their points."""
    sets = [s for s in preset.scenarios if {"ar", "sd", "ssd"} <= set(s.published) and s.batch == 1]
    first = sets[0] if sets else base
    costs, curves = preset.costs(first), []
    for alpha in ALPHAS:
        asked = replace(first, tokens_sd=tokens_per_round(alpha, first.sd_k), tokens_ssd=None)
        try:
            curves.append(speedups(alpha, asked.plans(), costs, preset.behaviour(asked)))
        except PlanError:
            break  # hits would have to yield more than K + 1 tokens
    points = []
    for s in sets:
        if _setting(s) == _setting(first):
            lengths = preset.behaviour(s).synchronous_lengths(s.sd_k)
            alpha = equivalent_alpha(tokens_from_lengths(lengths), s.sd_k)
            points.append(_published(alpha, s, s.published["ar"]))
    return curves, points


def _published(x: float, scenario: Scenario, ar: float) -> Speedups:
    sd, ssd = scenario.published.get("sd"), scenario.published.get("ssd")
    return Speedups(x, None if sd is None else sd / ar, None if ssd is None else ssd / ar)


def measured_points(document: Any) -> list[Point]:
    """Return the points of ``sonoran bench decode --json`` or of a report's ``results.json``. Raises PlanError."""
    if not isinstance(document, dict) or not isinstance(document.get("modes"), dict):
        raise PlanError(
            "no measurements: give what `sonoran bench decode --json` prints, or a report's results.json"
        )
    points = []
    for mode, values in document["modes"].items():
        if not isinstance(values, dict) or not isinstance(values.get("tokens_per_s"), (int, float)):
            raise PlanError(f"the measured mode {mode!r} has no tokens_per_s")
        points.append(Point(str(mode), 1, float(values["tokens_per_s"])))
    for entry in document.get("throughput", []):
        if not isinstance(entry, dict) or not {"mode", "batch", "tokens_per_s"} <= set(entry):
            known = ("mode", "batch", "tokens_per_s")
            raise PlanError(
                f"an entry of throughput needs mode, batch, tokens_per_s{nearest(str(entry), known)}"
            )
        points.append(Point(str(entry["mode"]), int(entry["batch"]), float(entry["tokens_per_s"])))
    return list({(p.mode, p.batch): p for p in points}.values())
