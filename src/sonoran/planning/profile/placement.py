"""Where the models of a profile may run, for which workload, and what rounds cost there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from sonoran.backends.load import Role
from sonoran.config import Verification
from sonoran.errors import PlanError
from sonoran.planning.profile.acceptance import Acceptance
from sonoran.planning.profile.profile import Cores, PassCurve, Profile, SamplingTime
from sonoran.planning.rounds.costs import Costs
from sonoran.theory.latency import LatencyCurve


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

    kind: Literal["alone", "shared", "split"]
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
        role: {c.cores for c in profile.passes if c.role == role and c.beside is None}
        for role in get_args(Role)
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
