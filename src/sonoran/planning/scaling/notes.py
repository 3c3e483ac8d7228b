"""Warnings of a plan: what was extrapolated beyond the fits or the measurements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sonoran.planning.scaling.costs import CostModel, MeasuredCost
from sonoran.planning.scaling.devices import DeviceCost
from sonoran.planning.scaling.laws import Laws
from sonoran.planning.scaling.optimum import smallest_draft
from sonoran.planning.scaling.quantities import format_count
from sonoran.planning.scaling.size_law import DATA_RANGE, LAW_RANGE


@dataclass(frozen=True, slots=True)
class Note:
    """One warning; ``code`` is stable, ``text`` is for people."""

    code: str
    text: str


def extrapolations(
    laws: Laws, target: float, target_tokens: float, draft: float | None, draft_tokens: float
) -> list[Note]:
    """What about a target and its proposed draft (None: no optimum) lies outside of what was fitted."""
    notes = []
    y = float(laws.loss.perplexity(target, target_tokens))
    if not laws.y_range[0] <= y <= laws.y_range[1]:
        notes.append(Note("target_perplexity", _outside("target", y, laws.y_range)))
    if draft is not None:
        x = float(laws.loss.perplexity(draft, draft_tokens))
        if not laws.x_range[0] <= x <= laws.x_range[1]:
            notes.append(Note("draft_perplexity", _outside("draft", x, laws.x_range)))
    if not LAW_RANGE[0] <= target <= LAW_RANGE[1]:
        notes.append(
            Note(
                "target_size",
                f"a target of {format_count(target)} is outside the 13B to 110B of the published size law; its "
                "straight line is not used here, but neither is the full optimum checked against "
                "measurements at this size",
            )
        )
    for role, value in (("target", target_tokens), ("draft", draft_tokens)):
        if not DATA_RANGE[0] <= value <= DATA_RANGE[1]:
            notes.append(
                Note(
                    f"{role}_tokens",
                    f"{format_count(value)} training tokens of the {role} are outside the 1T to 100T of the "
                    "published grid",
                )
            )
    sizes = np.geomspace(float(smallest_draft(target)), target, 200, endpoint=False)
    if float(np.max(laws.alpha(target, target_tokens, sizes, draft_tokens))) >= 1:
        notes.append(
            Note(
                "alpha_above_one",
                "the acceptance plane gives alpha of 1 or more for some draft sizes: it does not apply "
                "to this target",
            )
        )
    return notes


def _outside(role: str, value: float, span: tuple[float, float]) -> str:
    return (
        f"the loss law gives the {role} perplexity {value:.2f}, outside the {span[0]:.2f} to "
        f"{span[1]:.2f} on which the acceptance plane was fitted: alpha is extrapolated"
    )


def cost_extrapolations(cost: CostModel, draft: float, gamma: float) -> list[Note]:
    """Latencies that were not measured but extended from those that were."""
    if isinstance(cost, DeviceCost):
        of = [cost.device] + ([cost.draft_device] if cost.draft_device not in (None, cost.device) else [])
        return [Note("device", f"{device.name}: {device.about}") for device in of if device is not None]
    if not isinstance(cost, MeasuredCost):
        return []
    notes = []
    if not cost.sizes[0] <= draft <= cost.sizes[-1]:
        notes.append(
            Note(
                "draft_latency",
                f"a draft of {format_count(draft)} is outside the measured {format_count(cost.sizes[0])} to "
                f"{format_count(cost.sizes[-1])}",
            )
        )
    if gamma + 1 > cost.target.largest:
        notes.append(
            Note(
                "target_latency",
                f"a verification of {gamma + 1:.0f} rows is beyond the measured {cost.target.largest:.0f}",
            )
        )
    return notes
