"""A preset simulated, and the published values beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sonoran.simulate.closed_form import predict
from sonoran.simulate.events import simulate
from sonoran.simulate.plan import RoundResult
from sonoran.simulate.presets import QUANTITIES, Preset, Scenario

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity of one scenario; ``difference`` is simulated / published - 1."""

    quantity: str
    simulated: float
    closed_form: float
    published: float | None
    difference: float | None
    fitted: bool  # the published value went into the scenario, so agreement proves nothing


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """All of one scenario."""

    scenario: Scenario
    results: dict[str, RoundResult]
    comparisons: tuple[Comparison, ...]

    def value(self, quantity: str) -> Comparison:
        """Return one quantity (``QUANTITIES``)."""
        return next(c for c in self.comparisons if c.quantity == quantity)


def compare(
    preset: Preset, *, rounds: int = 2000, seed: int = 0, progress: Progress | None = None
) -> list[ScenarioResult]:
    """Simulate every scenario of a preset in AR, SD and SSD. Raises PlanError."""
    answers = []
    for done, scenario in enumerate(preset.scenarios):
        if progress is not None:
            progress(scenario.name, done, len(preset.scenarios))
        costs, behaviour = preset.costs(scenario), preset.behaviour(scenario)
        plans = scenario.plans()
        simulated = {
            mode: simulate(plan, costs, behaviour, rounds=rounds, seed=seed) for mode, plan in plans.items()
        }
        closed = {mode: predict(plan, costs, behaviour) for mode, plan in plans.items()}
        comparisons = []
        for quantity in QUANTITIES:
            value, formula = _value(simulated, quantity), _value(closed, quantity)
            published = scenario.published.get(quantity)
            difference = None if published is None else value / published - 1.0
            comparisons.append(
                Comparison(quantity, value, formula, published, difference, quantity in scenario.fitted)
            )
        answers.append(ScenarioResult(scenario, simulated, tuple(comparisons)))
    return answers


def to_document(preset: Preset, answers: list[ScenarioResult]) -> dict[str, Any]:
    """Return one JSON document."""
    return {
        "preset": preset.name,
        "description": preset.description,
        "sources": dict(preset.sources),
        "notes": list(preset.notes),
        "scenarios": [
            {
                "name": a.scenario.name,
                "system": a.scenario.system,
                "batch": a.scenario.batch,
                "temperature": a.scenario.temperature,
                "sd_k": a.scenario.sd_k,
                "ssd_k": a.scenario.ssd_k,
                "fan_out": list(a.scenario.fan_out),
                "backup": a.scenario.backup,
                "source": a.scenario.source,
                "ssd_over_sd": a.value("ssd").simulated / a.value("sd").simulated,
                "ssd_over_ar": a.value("ssd").simulated / a.value("ar").simulated,
                "values": {
                    c.quantity: {
                        "simulated": c.simulated,
                        "closed_form": c.closed_form,
                        "published": c.published,
                        "difference": c.difference,
                        "fitted": c.fitted,
                    }
                    for c in a.comparisons
                },
                "ssd_details": a.results["ssd"],
            }
            for a in answers
        ],
    }


def _value(results: dict[str, RoundResult], quantity: str) -> float:
    if quantity in results:
        return results[quantity].tokens_per_s
    ssd = results["ssd"]
    values = {
        "hit_rate": ssd.hit_rate or 0.0,
        "ssd_tokens": ssd.tokens_per_round,
        "ssd_round_ms": ssd.round_ms,
    }
    return values[quantity]
