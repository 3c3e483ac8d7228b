"""Presets: a pair of models on a machine, described by a JSON file, with the values that were published for it.

``docs/calibration.md`` describes the format. Everything is checked when it is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from sonoran.config import MAX_NUM_SEQS, MAX_SPECULATIVE_TOKENS
from sonoran.errors import PlanError, nearest, shown
from sonoran.models.untrusted import parse_json, read_text, refusing
from sonoran.planning.rounds.behaviour import MAX_RANK, Behaviour, power_for_tokens, stretch
from sonoran.planning.rounds.costs import Costs
from sonoran.planning.rounds.events import simulate
from sonoran.planning.rounds.formulas import Beyond, extrapolations, predict
from sonoran.planning.rounds.plan import FIXED_BACKUPS, FixedBackup, RoundAverages, RoundPlan
from sonoran.theory.speedup import probability, tokens_from_lengths

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
    return parse_preset(read_text(path, PlanError), str(path))


def parse_preset(text: str, where: str) -> Preset:
    """Read a preset from JSON text; ``where`` names it in messages. Raises PlanError."""
    with refusing(where, PlanError):
        return _preset(parse_json(text, PlanError), where)


def _preset(document: Any, where: str) -> Preset:
    if not isinstance(document, dict):
        raise PlanError(f"{where}: a preset is a JSON object")
    known = ("name", "description", "sources", "notes", "acceptance", "miss_to_hit", "systems", "scenarios")
    _reject_unknown(where, document, known)
    for key in ("name", "acceptance", "systems", "scenarios"):
        if not document.get(key):
            raise PlanError(f"{where}: {key!r} is missing or empty")
    if not isinstance(document["systems"], dict) or not isinstance(document["scenarios"], list):
        raise PlanError(
            f"{where}: 'systems' must be an object of costs by name, 'scenarios' a list of objects"
        )
    systems = {name: _costs(name, values) for name, values in document["systems"].items()}
    miss_to_hit = document.get("miss_to_hit", 1.0)
    if not isinstance(miss_to_hit, (int, float)) or not 0.0 < miss_to_hit <= 1.0:
        raise PlanError(f"{where}: miss_to_hit must lie in (0, 1], got {shown(miss_to_hit)}")
    preset = Preset(
        str(document["name"]),
        str(document.get("description", "")),
        systems,
        tuple(
            probability("acceptance", rate)
            for rate in _typed(document["acceptance"], list[float], "acceptance")
        ),
        float(miss_to_hit),
        tuple(_scenario(where, values, systems) for values in document["scenarios"]),
        _typed(document.get("sources", {}), dict[str, str], "sources"),
        tuple(_typed(document.get("notes", []), list[str], "notes")),
    )
    for scenario in preset.scenarios:
        preset.behaviour(scenario)
    return preset


def _typed(value: Any, kind: Any, what: str) -> Any:
    """The value as a type that it must have, down to the last item. Raises PlanError naming the place."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise PlanError(f"{what}: {error}") from None


def _costs(name: str, values: Any) -> Costs:
    if not isinstance(values, dict):
        raise PlanError(f"system {name!r} must be an object of costs, got {shown(values)}")
    try:
        return Costs.from_mapping({key: value for key, value in values.items() if key != "about"})
    except PlanError as error:
        raise PlanError(f"system {name!r}: {error}") from None


def _scenario(where: str, given: Any, systems: Mapping[str, Costs]) -> Scenario:
    if not isinstance(given, dict):
        raise PlanError(f"{where}: a scenario must be an object, got {shown(given)}")
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
    for name, most in (
        ("sd_k", MAX_SPECULATIVE_TOKENS),
        ("ssd_k", MAX_SPECULATIVE_TOKENS),
        ("batch", MAX_NUM_SEQS),
    ):
        value = values.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise PlanError(f"{here}: {name} must be a whole number from 1 to {most}, got {shown(value)}")
    if isinstance(values["fan_out"], int):
        values["fan_out"] = [values["fan_out"]] * (values["ssd_k"] + 1)
    backup = values.get("backup", "draft")
    if backup not in FIXED_BACKUPS:
        raise PlanError(f"{here}: unknown backup {shown(backup)}{nearest(str(backup), FIXED_BACKUPS)}")
    scenario: Scenario = _typed(values, Scenario, here)
    if scenario.system not in systems:
        raise PlanError(f"{here}: unknown system {scenario.system!r}{nearest(scenario.system, systems)}")
    if max(scenario.fan_out, default=0) > MAX_RANK:
        raise PlanError(f"{here}: fan_out must be at most {MAX_RANK}, got {shown(max(scenario.fan_out))}")
    _reject_unknown(f"{here}, published", scenario.published, QUANTITIES)
    _reject_unknown(f"{here}, fitted", dict.fromkeys(scenario.fitted), QUANTITIES)
    for quantity, value in scenario.published.items():
        if not (math.isfinite(value) and value > 0.0):
            raise PlanError(f"{here}: the published {quantity} must be a positive number, got {shown(value)}")
    if "sd" not in scenario.published and not (scenario.tokens_sd or scenario.tokens_ssd):
        raise PlanError(f"{here}: give tokens_sd, tokens_ssd, or the published speed of sd")
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
