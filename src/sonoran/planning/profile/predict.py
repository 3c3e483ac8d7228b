"""Tokens per second of every configuration that a profile can answer for.

Closed forms of the SSD paper with measured terms, over rounds replayed from real text; the best SSD configurations
are then simulated, which covers early answers and rows that differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from sonoran.errors import PlanError
from sonoran.planning.profile.profile import (
    Acceptance,
    Cores,
    PassCurve,
    Profile,
    Role,
    SamplingTime,
    Verification,
)
from sonoran.planning.profile.replay import behaviour_of, best_fan_out, replay_budget, replay_lengths
from sonoran.planning.rounds.costs import Costs
from sonoran.planning.rounds.events import simulate
from sonoran.planning.rounds.formulas import autoregressive, predict, speculative, synchronous
from sonoran.planning.rounds.plan import Mode, RoundAverages, RoundPlan
from sonoran.theory.distributions import length_distribution
from sonoran.theory.latency import LatencyCurve
from sonoran.theory.speedup import tokens_from_lengths

Kind = Literal["alone", "shared", "split"]


@dataclass(frozen=True, slots=True)
class Workload:
    """What shall be decoded: sequences at once, tokens that each sees, and how it is sampled. Raises PlanError."""

    batch: int = 1
    context: int = 256
    temperature: float = 0.0
    verification: Verification = "coupled"

    def __post_init__(self) -> None:
        if self.batch < 1 or self.context < 1 or not self.temperature >= 0.0:
            raise PlanError(f"a workload needs batch >= 1, context >= 1 and temperature >= 0, got {self!r}")


@dataclass(frozen=True, slots=True)
class Placement:
    """``alone``: the target has the cores; ``shared``: both models take turns on them; ``split``: each its own."""

    kind: Kind
    target_cores: Cores
    draft_cores: Cores | None = None

    def __str__(self) -> str:
        """Return cores as a reader writes them: ``0,1`` or ``0 | 1``."""
        target = ",".join(map(str, self.target_cores))
        if self.draft_cores is None:
            return target
        return f"{target} | {','.join(map(str, self.draft_cores))}"


def placements(profile: Profile) -> list[Placement]:
    """Return every placement that the profile has measurements for, most cores first."""
    alone = {
        role: {c.cores for c in profile.passes if c.role == role and c.beside is None} for role in _ROLES
    }
    found = [Placement("alone", cores) for cores in alone["target"]]
    found += [Placement("shared", cores) for cores in alone["target"] & alone["draft"]]
    target = {(c.cores, c.beside) for c in profile.passes if c.role == "target" and c.beside is not None}
    draft = {(c.beside, c.cores) for c in profile.passes if c.role == "draft" and c.beside is not None}
    found += [Placement("split", cores, beside) for cores, beside in target & draft]
    order = {"alone": 0, "shared": 1, "split": 2}
    return sorted(
        found, key=lambda p: (order[p.kind], -len(p.target_cores), p.target_cores, p.draft_cores or ())
    )


def costs_for(profile: Profile, placement: Placement, workload: Workload) -> Costs:
    """Return the costs of rounds under a placement. Raises PlanError when the profile lacks measurements."""
    sampling = nearest_sampling(profile, workload.temperature)

    def curve(role: Role, cores: Cores, beside: Cores | None = None) -> LatencyCurve:
        return curve_at(profile.passes, role, cores, beside, workload.context)

    target = curve("target", placement.target_cores)
    where = placement.draft_cores or placement.target_cores
    has_draft = any(c.role == "draft" and c.cores == where and c.beside is None for c in profile.passes)
    split = placement.kind == "split"
    return Costs(
        target=target,
        # Without a draft nothing but AR is ever asked for.
        draft=curve("draft", where) if has_draft else target,
        target_beside=curve("target", placement.target_cores, where) if split else None,
        draft_beside=curve("draft", where, placement.target_cores) if split else None,
        message_ms=profile.message.ms if split else 0.0,
        host_ms=profile.host.ms,
        row_ms=sampling.row.ms if sampling else 0.0,
        token_ms=sampling.token.ms if sampling else 0.0,
        guess_ms=sampling.guess.ms if sampling else 0.0,
    )


def curve_at(
    passes: Iterable[PassCurve], role: Role, cores: Cores, beside: Cores | None, context: int
) -> LatencyCurve:
    """Return ms by rows behind ``context`` tokens: linear between measured contexts, and beyond them.

    Below the shortest context the shortest counts. Raises PlanError when there is no such curve.
    """
    curves = sorted(
        (c for c in passes if c.role == role and c.cores == cores and c.beside == beside),
        key=lambda c: c.context,
    )
    if not curves:
        where = ",".join(map(str, cores)) + (f" beside {','.join(map(str, beside))}" if beside else "")
        raise PlanError(f"the profile has no passes of the {role} on cores {where}; calibrate again")
    if len(curves) == 1 or context <= curves[0].context:
        return curves[0].curve
    at = next((i for i, c in enumerate(curves) if c.context >= context), len(curves) - 1)
    low, high = curves[at - 1], curves[at]
    share = (context - low.context) / (high.context - low.context)
    points = []
    for rows in sorted({point.rows for curve in (low, high) for point in curve.points}):
        a, b = low.curve(rows), high.curve(rows)
        # A longer context that came out faster is noise, not a reason to extrapolate downwards.
        points.append((rows, a + share * (b - a) if share <= 1.0 else b + (share - 1.0) * max(0.0, b - a)))
    return LatencyCurve.of(points)


def nearest_sampling(profile: Profile, temperature: float) -> SamplingTime | None:
    """Return the sampling times of the nearest temperature; greedy and sampled are never mixed up."""
    same = [s for s in profile.sampling if (s.temperature == 0.0) == (temperature == 0.0)]
    return min(same or profile.sampling, key=lambda s: abs(s.temperature - temperature), default=None)


def nearest_acceptance(profile: Profile, workload: Workload) -> Acceptance | None:
    """Return what was measured under the nearest conditions: the rule first, then the temperature."""

    def distance(a: Acceptance) -> tuple[bool, bool, float]:
        # At temperature 0 both rules accept the same tokens.
        other_rule = a.verification != workload.verification and workload.temperature > 0.0
        greedy_differs = (a.temperature == 0.0) != (workload.temperature == 0.0)
        return greedy_differs, other_rule, abs(a.temperature - workload.temperature)

    return min(profile.acceptance, key=distance, default=None)


_ROLES: tuple[Role, Role] = ("target", "draft")


DEFAULT_K = (1, 2, 3, 4, 5, 6, 7, 8)
DEFAULT_BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SIMULATED = 12
SIMULATED_ROUNDS = 800
Backup = Literal["draft", "none"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """One configuration and what it should do. ``tokens_per_s`` is of the whole batch.

    ``uncertainty`` is relative, one standard error: spread of the passes and of the acceptance. ``extrapolated``:
    passes of more rows were needed than were measured. ``method`` says how SSD was computed.
    """

    mode: Mode
    placement: Placement
    batch: int
    tokens_per_s: float
    tokens_per_round: float
    round_ms: float
    verify_ms: float
    num_speculative_tokens: int = 0
    budget: int = 0
    fan_out: tuple[int, ...] = ()
    backup: Backup | None = None
    hit_rate: float | None = None
    draft_ms: float | None = None  # SD: drafting before a verification; SSD: the draft's round beside it
    uncertainty: float = 0.0
    extrapolated: bool = False
    method: Literal["formula", "simulation"] = "formula"

    @property
    def label(self) -> str:
        """Return the configuration in a few words."""
        where = f"on {self.placement}"
        if self.mode == "ar":
            return f"AR {where}"
        if self.mode == "sd":
            return f"SD, K = {self.num_speculative_tokens} {where}"
        return f"SSD, K = {self.num_speculative_tokens}, budget {self.budget}, backup {self.backup}, {where}"

    @property
    def hidden(self) -> bool | None:
        """Whether SSD's drafting ends before verification does; None for the other modes."""
        if self.mode != "ssd" or self.draft_ms is None:
            return None
        return self.draft_ms <= self.verify_ms


def predict_all(
    profile: Profile,
    workload: Workload,
    *,
    k_values: Sequence[int] = DEFAULT_K,
    budgets: Sequence[int] = DEFAULT_BUDGETS,
    backups: Sequence[Backup] = ("draft", "none"),
    where: Iterable[Placement] | None = None,
    simulated: int = SIMULATED,
) -> list[Prediction]:
    """Return predictions of all configurations, fastest first; AR is always among them. Raises PlanError.

    Without a draft in the profile there is only AR. K that the texts are too short for is left out. The best
    ``simulated`` SSD configurations are simulated.
    """
    acceptance = nearest_acceptance(profile, workload)
    predictions: list[Prediction] = []
    for placement in placements(profile) if where is None else where:
        costs = costs_for(profile, placement, workload)
        if placement.kind == "alone":
            predictions.append(_autoregressive(profile, placement, workload, costs))
        elif acceptance is not None:
            longest = max((len(trace.rejected) for trace in acceptance.traces), default=0)
            for k in (k for k in k_values if 1 <= k < longest):
                if placement.kind == "shared":
                    predictions.append(_synchronous(profile, placement, workload, costs, acceptance, k))
                else:
                    predictions += _speculative(
                        profile, placement, workload, costs, acceptance, k, budgets, backups
                    )
    if not any(p.mode == "ar" for p in predictions):
        raise PlanError("the profile has no passes of the target alone for this placement; calibrate again")
    predictions.sort(key=lambda p: -p.tokens_per_s)
    if acceptance is not None:
        _simulate_best(profile, workload, acceptance, predictions, simulated)
    return sorted(predictions, key=lambda p: -p.tokens_per_s)


def _autoregressive(profile: Profile, placement: Placement, workload: Workload, costs: Costs) -> Prediction:
    result = autoregressive(RoundPlan("ar", batch=workload.batch), costs)
    return replace(
        _prediction(placement, workload, result),
        uncertainty=_timing_error(profile),
        extrapolated=workload.batch > costs.target.largest,
    )


def _synchronous(
    profile: Profile, placement: Placement, workload: Workload, costs: Costs, acceptance: Acceptance, k: int
) -> Prediction:
    result = synchronous(RoundPlan("sd", k, workload.batch), costs, replay_lengths(acceptance, k))
    return replace(
        _prediction(placement, workload, result),
        num_speculative_tokens=k,
        draft_ms=result.wait_ms,
        uncertainty=_error(profile, acceptance, k),
        extrapolated=_extrapolates(costs, workload.batch * (k + 1), workload.batch),
    )


def _speculative(
    profile: Profile,
    placement: Placement,
    workload: Workload,
    costs: Costs,
    acceptance: Acceptance,
    k: int,
    budgets: Sequence[int],
    backups: Sequence[Backup],
) -> list[Prediction]:
    found = []
    for budget in budgets:
        fan_out = best_fan_out(acceptance, k, budget)
        for backup in backups:
            replay = replay_budget(acceptance, k, budget, backup=backup)
            plan = RoundPlan("ssd", k, workload.batch, fan_out, backup=backup)
            result = speculative(
                plan,
                costs,
                after_primary=replay.after_primary,
                after_backup=replay.after_backup,
                tokens_hit=replay.tokens_hit,
                tokens_miss=replay.tokens_miss,
            )
            found.append(
                replace(
                    _prediction(placement, workload, result),
                    num_speculative_tokens=k,
                    budget=budget,
                    fan_out=fan_out,
                    backup=backup,
                    draft_ms=result.draft_round_ms,
                    uncertainty=_error(profile, acceptance, k),
                    extrapolated=_extrapolates(costs, workload.batch * (k + 1), workload.batch * budget),
                )
            )
    return found


def _simulate_best(
    profile: Profile, workload: Workload, acceptance: Acceptance, predictions: list[Prediction], count: int
) -> None:
    """Replace the formulas' answers for the best SSD configurations by simulated ones, in place."""
    best = [i for i, p in enumerate(predictions) if p.mode == "ssd"][:count]
    for index in best:
        p = predictions[index]
        backup: Backup = p.backup or "draft"
        replay = replay_budget(acceptance, p.num_speculative_tokens, p.budget, backup=backup)
        behaviour = behaviour_of(acceptance, p.num_speculative_tokens, replay)
        plan = RoundPlan("ssd", p.num_speculative_tokens, p.batch, p.fan_out, backup=backup)
        costs = costs_for(profile, p.placement, workload)
        event = simulate(plan, costs, behaviour, rounds=SIMULATED_ROUNDS)
        # The laws behind the simulation forget what the replay knows of runs of hits; the formula, evaluated
        # both ways, says how much that matters.
        correction = p.tokens_per_s / predict(plan, costs, behaviour).tokens_per_s
        predictions[index] = replace(
            p,
            tokens_per_s=event.tokens_per_s * correction,
            round_ms=event.round_ms,
            verify_ms=event.verify_ms,
            tokens_per_round=event.tokens_per_s * correction * event.round_ms / (1e3 * p.batch),
            method="simulation",
        )


def _prediction(placement: Placement, workload: Workload, result: RoundAverages) -> Prediction:
    return Prediction(
        result.mode,
        placement,
        workload.batch,
        result.tokens_per_s,
        result.tokens_per_round,
        result.round_ms,
        result.verify_ms,
        hit_rate=result.hit_rate,
    )


def _extrapolates(costs: Costs, target_rows: int, draft_rows: int) -> bool:
    draft = costs.draft_beside or costs.draft
    return target_rows > costs.target.largest or draft_rows > draft.largest


def _timing_error(profile: Profile) -> float:
    counts = [point.time.count for curve in profile.passes for point in curve.points]
    # Interquartile range of a normal law: 1.35 standard deviations; a median varies 1.25 times as a mean.
    return 1.25 * profile.spread / 1.35 / math.sqrt(max(1.0, sum(counts) / len(counts)))


def _error(profile: Profile, acceptance: Acceptance, k: int) -> float:
    """Tokens per round grow as sum a^i: d ln E / d a from the pooled rate."""
    a = min(acceptance.rate, 1.0 - 1e-9)
    tokens = math.fsum(a**i for i in range(k + 1))
    slope = math.fsum(i * a ** (i - 1) for i in range(1, k + 1))
    return math.hypot(_timing_error(profile), slope * acceptance.standard_error / tokens)


@dataclass(frozen=True, slots=True)
class RoundModel:
    """Predicted ms of a round for K = 0..K_max at one batch size."""

    batch: int
    round_ms: tuple[float, ...]


class Rounds(Protocol):
    """What a policy knows beforehand."""

    @property
    def rates(self) -> tuple[float, ...]:
        """Acceptance by position."""
        ...

    def model(self, batch: int) -> RoundModel:
        """Return predicted rounds of a batch."""
        ...


class ProfileRounds:
    """Rounds of one placement in SD or SSD, from a profile, computed once for each batch size.

    Raises PlanError when the profile has no acceptance for the workload.
    """

    def __init__(
        self, profile: Profile, placement: Placement, mode: Mode, k_max: int, context: int, temperature: float
    ) -> None:
        self._profile, self._placement, self._mode, self._k_max = profile, placement, mode, k_max
        self._context, self._temperature = context, temperature
        self._models: dict[int, RoundModel] = {}
        acceptance = nearest_acceptance(profile, self._workload(1))
        if acceptance is None:
            raise PlanError("the profile has no acceptance; calibrate with a draft")
        longest = max(len(trace.rejected) for trace in acceptance.traces)
        if longest < 2:
            raise PlanError("the calibration texts are too short to tell acceptance; calibrate again")
        counts = replay_lengths(acceptance, min(k_max, longest - 1))
        reached, rates = sum(counts), []
        for stopped in counts[:-1]:
            # Four observations at the pooled rate, for positions that were hardly ever reached.
            rates.append((reached - stopped + 4.0 * acceptance.rate) / (reached + 4.0))
            reached -= stopped
        self._rates = tuple(rates)

    @property
    def rates(self) -> tuple[float, ...]:
        """Acceptance by position."""
        return self._rates

    def model(self, batch: int) -> RoundModel:
        """Return predicted rounds of a batch; sizes between powers of two share the next larger one."""
        size = 1 << max(0, batch - 1).bit_length()
        if size not in self._models:
            self._models[size] = self._predict(size)
        return self._models[size]

    def prepare(self, largest: int) -> None:
        """Predict every batch size up to ``largest`` now, so that serving never waits for it."""
        size = 1
        while size < 2 * largest:
            self.model(size)
            size *= 2

    def _predict(self, batch: int) -> RoundModel:
        workload = self._workload(batch)
        costs = costs_for(self._profile, self._placement, workload)
        plain = autoregressive(RoundPlan("ar", batch=batch), costs).round_ms
        if self._mode == "sd":
            rounds = [
                synchronous(RoundPlan("sd", k, batch), costs, length_distribution(self._rates, k))
                for k in self._ks()
            ]
            return RoundModel(batch, (plain, *(r.round_ms for r in rounds)))
        alone = Placement("alone", self._placement.target_cores)
        found = predict_all(
            self._profile,
            workload,
            k_values=self._ks(),
            budgets=(4, 8, 16),
            where=(alone, self._placement),
            simulated=0,
        )
        # Rounds whose speed and tokens agree with the best prediction for each K.
        best: dict[int, float] = {}
        for p in found:
            if p.mode == "ssd":
                emitted = tokens_from_lengths(length_distribution(self._rates, p.num_speculative_tokens))
                ms = 1e3 * batch * emitted / p.tokens_per_s
                best[p.num_speculative_tokens] = min(best.get(p.num_speculative_tokens, math.inf), ms)
        return RoundModel(batch, (plain, *(best.get(k, math.inf) for k in self._ks())))

    def _ks(self) -> range:
        return range(1, self._k_max + 1)

    def _workload(self, batch: int) -> Workload:
        return Workload(batch, self._context, self._temperature)
