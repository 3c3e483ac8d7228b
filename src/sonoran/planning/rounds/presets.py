"""Presets: a pair of models on a machine, described by a JSON file, with the values that were published for it.

``docs/calibration.md`` describes the format. Everything is checked when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from sonoran.errors import PlanError, nearest
from sonoran.planning.rounds.behaviour import Behaviour, power_for_tokens, stretch
from sonoran.planning.rounds.costs import Costs
from sonoran.planning.rounds.events import simulate
from sonoran.planning.rounds.formulas import Beyond, extrapolations, predict
from sonoran.planning.rounds.plan import FixedBackup, RoundAverages, RoundPlan
from sonoran.theory.speedup import tokens_from_lengths

PRESETS = ("llama-70b", "qwen-32b")
QUANTITIES = ("ar", "sd", "ssd", "hit_rate", "ssd_tokens", "ssd_round_ms")
"""What may be published: tokens per second by mode, and of SSD the hit rate, tokens per round and row, round ms."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run of AR, SD and SSD with published values beside it. See the format's description."""

    name: str
    system: str
    sd_k: int
    ssd_k: int
    fan_out: tuple[int, ...]
    rejected_exponent: float
    accepted_exponent: float
    published: Mapping[str, float]
    fitted: tuple[str, ...] = ()
    batch: int = 1
    temperature: float = 0.0
    backup: FixedBackup = "draft"
    early_answers: bool = False
    tokens_sd: float | None = None
    tokens_ssd: float | None = None
    source: str = ""

    def plans(self) -> dict[str, RoundPlan]:
        """Return the plan of each mode."""
        return {
            "ar": RoundPlan("ar", batch=self.batch),
            "sd": RoundPlan("sd", self.sd_k, self.batch),
            "ssd": RoundPlan(
                "ssd",
                self.ssd_k,
                self.batch,
                self.fan_out,
                backup=self.backup,
                early_answers=self.early_answers,
            ),
        }


@dataclass(frozen=True, slots=True)
class Preset:
    """Systems (costs by name), the shape of the acceptance by position, and scenarios.

    ``acceptance`` gives the shape; a scenario raises it to the power that yields its tokens per round.
    ``miss_to_hit`` is tokens of a round after a miss divided by those after a hit: misses happen in hard text.
    """

    name: str
    description: str
    systems: Mapping[str, Costs]
    acceptance: tuple[float, ...]
    miss_to_hit: float
    scenarios: tuple[Scenario, ...]
    sources: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def costs(self, scenario: Scenario) -> Costs:
        """Return the costs of a scenario's system."""
        return self.systems[scenario.system]

    def behaviour(self, scenario: Scenario) -> Behaviour:
        """Return acceptance and ranks of a scenario. Raises PlanError for tokens that are impossible."""
        power = self._power(scenario)
        average = stretch(self.acceptance, power)
        ranks = Behaviour.power_law(average, scenario.rejected_exponent)
        accepted = Behaviour.power_law(average, scenario.accepted_exponent)
        whole = Behaviour(average, ranks.rejected_cdf, accepted.accepted_cdf, synchronous=average)
        if self.miss_to_hit == 1.0:
            return whole
        k = scenario.ssd_k
        share = whole.hit_rate("primary", scenario.fan_out)
        mean = tokens_from_lengths(whole.lengths("primary", k))
        hit = mean / (share + (1.0 - share) * self.miss_to_hit)
        by_origin = [
            stretch(self.acceptance, power_for_tokens(self.acceptance, k, tokens))
            for tokens in (hit, hit * self.miss_to_hit)
        ]
        return Behaviour(
            by_origin[0], whole.rejected_cdf, whole.accepted_cdf, by_origin[1], synchronous=average
        )

    def _power(self, scenario: Scenario) -> float:
        if scenario.tokens_ssd is not None:
            return power_for_tokens(self.acceptance, scenario.ssd_k, scenario.tokens_ssd)
        tokens = scenario.tokens_sd
        if tokens is None:
            # What the published speed of SD says about acceptance; SSD is then predicted, not fitted.
            costs, k, batch = self.costs(scenario), scenario.sd_k, scenario.batch
            round_ms = k * costs.draft_ms(batch) + costs.verify_ms(batch * (k + 1)) + costs.host_ms
            per_ms = scenario.published["sd"] / (1e3 * batch)
            tokens = per_ms * round_ms / (1.0 - per_ms * batch * costs.row_ms)
        return power_for_tokens(self.acceptance, scenario.sd_k, tokens)


def load_preset(name: str) -> Preset:
    """Load a preset that comes with the package, or a JSON file. Raises PlanError."""
    if name in PRESETS:
        file = resources.files("sonoran.planning.rounds") / "data" / f"{name}.json"
        return parse_preset(file.read_text(encoding="utf-8"), name)
    path = Path(name)
    if path.suffix != ".json" and not path.is_file():
        raise PlanError(f"unknown preset {name!r}{nearest(name, PRESETS)} (or a JSON file)")
    try:
        return parse_preset(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"cannot read the preset {path}: {error}") from error


def parse_preset(text: str, where: str) -> Preset:
    """Read a preset from JSON text; ``where`` names it in messages. Raises PlanError."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise PlanError(f"{where} is not JSON: line {error.lineno}: {error.msg}") from None
    if not isinstance(document, dict):
        raise PlanError(f"{where}: a preset is a JSON object")
    known = ("name", "description", "sources", "notes", "acceptance", "miss_to_hit", "systems", "scenarios")
    _reject_unknown(where, document, known)
    for key in ("name", "acceptance", "systems", "scenarios"):
        if not document.get(key):
            raise PlanError(f"{where}: {key!r} is missing or empty")
    systems = {
        name: Costs.from_mapping({k: v for k, v in values.items() if k != "about"})
        for name, values in document["systems"].items()
    }
    miss_to_hit = document.get("miss_to_hit", 1.0)
    if not isinstance(miss_to_hit, (int, float)) or not 0.0 < miss_to_hit <= 1.0:
        raise PlanError(f"{where}: miss_to_hit must lie in (0, 1], got {miss_to_hit!r}")
    return Preset(
        str(document["name"]),
        str(document.get("description", "")),
        systems,
        tuple(float(a) for a in document["acceptance"]),
        float(miss_to_hit),
        tuple(_scenario(where, values, systems) for values in document["scenarios"]),
        dict(document.get("sources", {})),
        tuple(str(note) for note in document.get("notes", ())),
    )


def _scenario(where: str, given: Mapping[str, Any], systems: Mapping[str, Costs]) -> Scenario:
    here = f"{where}, scenario {given.get('name', '?')!r}"
    values = dict(given)
    exponent = values.pop("rank_exponent", None)
    if exponent is not None:
        values.setdefault("rejected_exponent", exponent)
        values.setdefault("accepted_exponent", exponent)
    _reject_unknown(here, values, [field.name for field in fields(Scenario)])
    values.setdefault("published", {})
    for key in ("name", "system", "sd_k", "ssd_k", "fan_out", "rejected_exponent", "accepted_exponent"):
        if key not in values:
            raise PlanError(f"{here}: {key!r} is missing")
    if values["system"] not in systems:
        raise PlanError(f"{here}: unknown system {values['system']!r}{nearest(values['system'], systems)}")
    if isinstance(values["fan_out"], int):
        values["fan_out"] = [values["fan_out"]] * (values["ssd_k"] + 1)
    values["fan_out"] = tuple(values["fan_out"])
    values["fitted"] = tuple(values.get("fitted", ()))
    _reject_unknown(f"{here}, published", values["published"], QUANTITIES)
    _reject_unknown(f"{here}, fitted", dict.fromkeys(values["fitted"]), QUANTITIES)
    if "sd" not in values["published"] and not (values.get("tokens_sd") or values.get("tokens_ssd")):
        raise PlanError(f"{here}: give tokens_sd, tokens_ssd, or the published speed of sd")
    scenario = Scenario(**values)
    scenario.plans()
    return scenario


def _reject_unknown(where: str, given: Mapping[str, Any], known: tuple[str, ...] | list[str]) -> None:
    for key in given:
        if key not in known:
            raise PlanError(f"{where}: unknown key {key!r}{nearest(str(key), known)}")


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
    results: dict[str, RoundAverages]
    comparisons: tuple[Comparison, ...]
    extrapolated: dict[str, list[Beyond]]  # by mode: passes of more rows than were measured

    def value(self, quantity: str) -> Comparison:
        """Return one quantity (``QUANTITIES``)."""
        return next(c for c in self.comparisons if c.quantity == quantity)


def compare(
    preset: Preset,
    *,
    rounds: int = 2000,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[ScenarioResult]:
    """Simulate every scenario of a preset in AR, SD and SSD. Raises PlanError.

    ``progress`` is called with the scenario's name, the scenarios done and their number.
    """
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
        beyond = {mode: extrapolations(plan, costs) for mode, plan in plans.items()}
        answers.append(ScenarioResult(scenario, simulated, tuple(comparisons), beyond))
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
                "extrapolated": a.extrapolated,
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


def _value(results: dict[str, RoundAverages], quantity: str) -> float:
    if quantity in results:
        return results[quantity].tokens_per_s
    ssd = results["ssd"]
    values = {
        "hit_rate": ssd.hit_rate or 0.0,
        "ssd_tokens": ssd.tokens_per_round,
        "ssd_round_ms": ssd.round_ms,
    }
    return values[quantity]
