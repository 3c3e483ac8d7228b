"""What would make decoding faster: the same profile with one thing changed, and the draft that the laws would size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sonoran.planning.profile.choose import choose
from sonoran.planning.profile.placement import Workload
from sonoran.planning.profile.predict import Prediction, predict_all
from sonoran.planning.profile.profile import Cores, PassCurve, PassPoint, Profile

WORTH_SAYING = 0.03
"""Changes that gain less than this share are not mentioned."""


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
    return replace(curve, points=tuple(PassPoint(p.rows, first) for p in curve.points))
