"""A complete set of laws: losses, acceptance, the data behind them; and the file that carries it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sonoran.errors import PlanError, nearest, shown
from sonoran.models.untrusted import parse_json, refusing
from sonoran.planning.scaling.acceptance import AcceptanceLaw, AcceptancePlane, PlaneFit
from sonoran.planning.scaling.loss import BESIROGLU, LossLaw, loss_law_from_dict
from sonoran.planning.scaling.measurements import Measurement, measurement_to_dict, parse_measurements
from sonoran.planning.scaling.quantities import finite
from sonoran.planning.scaling.regression import quantile95
from sonoran.planning.scaling.uncertainty import Scatter, Shifted, left_out_error, scatter
from sonoran.theory.distributions import Floats

LAWS_FORMAT = "sonoran-laws"
LAWS_VERSION = 1
_KEYS = ("format", "version", "source", "loss", "plane", "quality", "range", "measurements")


@dataclass(frozen=True, slots=True)
class Anchor:
    """A measured pair: alpha of a draft (parameters, training tokens) for the plan's target."""

    draft: float
    draft_tokens: float
    target: float
    target_tokens: float
    alpha: float


@dataclass(frozen=True, slots=True)
class Laws:
    """Everything that predicts alpha from sizes and data, with the range in which it was fitted.

    With ``anchors`` the acceptance law is moved so that it meets them on average; ``anchored_sd`` is then the error
    of alpha of another draft of that target.
    """

    loss: LossLaw
    acceptance: AcceptanceLaw
    x_range: tuple[float, float]  # draft perplexities of the fit
    y_range: tuple[float, float]  # target perplexities of the fit
    r2: float
    residual_sd: float  # of the fit, in alpha
    scatter: Scatter
    measurements: tuple[Measurement, ...] = ()
    source: str = ""
    anchors: tuple[Anchor, ...] = ()
    anchored_sd: float | None = None

    @property
    def law(self) -> AcceptanceLaw:
        """The acceptance law, moved through the anchors."""
        if not self.anchors:
            return self.acceptance
        offsets = [
            a.alpha
            - self.acceptance.alpha(
                self.loss.perplexity(a.draft, a.draft_tokens), self.loss.perplexity(a.target, a.target_tokens)
            )
            for a in self.anchors
        ]
        return Shifted(self.acceptance, np.mean(offsets, axis=0))

    def alpha(
        self, target: ArrayLike, target_tokens: ArrayLike, draft: ArrayLike, draft_tokens: ArrayLike
    ) -> Floats:
        """Acceptance rate for sizes in parameters and data in tokens; broadcasts, not clipped to (0, 1)."""
        x = self.loss.perplexity(draft, draft_tokens)
        y = self.loss.perplexity(target, target_tokens)
        return self.law.alpha(x, y)

    def half_width(self, x: float, y: float) -> float:
        """Half of the 95 % interval of alpha of one pair at the perplexities x (draft) and y (target)."""
        if self.anchored_sd is not None:
            return quantile95(self.scatter.dof) * self.anchored_sd
        return self.scatter.half_width(x, y)


def laws_from_fit(
    fit: PlaneFit, measurements: tuple[Measurement, ...], *, loss: LossLaw = BESIROGLU, source: str = ""
) -> Laws:
    """Laws around a fitted plane."""
    regression = fit.regression
    return Laws(
        loss,
        fit.plane,
        fit.x_range,
        fit.y_range,
        regression.r2,
        regression.residual_sd,
        scatter(measurements, regression.residual_sd),
        measurements,
        source,
    )


def fit_warnings(fit: PlaneFit, measurements: list[Measurement]) -> list[str]:
    """Reasons not to trust a fit too far."""
    warnings = []
    targets = len({point.target for point in measurements})
    if len(measurements) < 10:
        warnings.append(
            f"only {len(measurements)} pairs: the plane has three coefficients; 10 pairs or more are better"
        )
    if targets < 3:
        warnings.append(
            f"only {targets} targets: no bootstrap interval for N*, and B rests on their difference alone"
        )
    for name, value, margin in zip("AB", fit.regression.coefficients, fit.regression.margins, strict=False):
        if abs(value) < margin:
            warnings.append(f"{name} = {value:.3g} cannot be told from zero (95 % margin {margin:.3g})")
    if fit.regression.r2 < 0.5:
        warnings.append(
            f"R2 is {fit.regression.r2:.2f}: the plane explains less than half of the differences"
        )
    return warnings


def laws_to_dict(fit: PlaneFit, laws: Laws) -> dict[str, Any]:
    """The JSON document that ``laws_from_json`` reads."""
    regression = fit.regression
    names = ("A", "B", "C")
    return {
        "format": LAWS_FORMAT,
        "version": LAWS_VERSION,
        "source": laws.source,
        "loss": laws.loss.to_dict(),
        "plane": dict(zip(names, (float(v) for v in regression.coefficients), strict=True)),
        "quality": {
            "points": len(regression.residuals),
            "targets": len({point.target for point in laws.measurements}),
            "drafts": len({point.draft for point in laws.measurements}),
            "r2": regression.r2,
            "mse": regression.mse,
            "residual_sd": regression.residual_sd,
            "standard_errors": dict(zip(names, (float(v) for v in regression.standard_errors), strict=True)),
            "margins_95": dict(zip(names, (float(v) for v in regression.margins), strict=True)),
            "left_out_target_error": left_out_error(laws.measurements),
        },
        "range": {"draft_perplexity": list(laws.x_range), "target_perplexity": list(laws.y_range)},
        "measurements": [measurement_to_dict(point) for point in laws.measurements],
    }


@refusing("laws file", PlanError)
def laws_from_json(text: str) -> Laws:
    """Read a laws file. Raises PlanError with the offending key."""
    value = parse_json(text, PlanError)
    if not isinstance(value, Mapping) or value.get("format") != LAWS_FORMAT:
        raise PlanError(
            f"not a laws file: the key 'format' must be {LAWS_FORMAT!r} (write one with `sonoran plan fit`)"
        )
    if value.get("version") != LAWS_VERSION:
        raise PlanError(
            f"laws file has version {shown(value.get('version'))}; this release reads version {LAWS_VERSION}"
        )
    for key in value:
        if key not in _KEYS:
            raise PlanError(f"laws file: unknown key {key!r}{nearest(str(key), _KEYS)}")
    plane = _numbers(value, "plane", ("A", "B", "C"))
    quality = _numbers(value, "quality", ("r2", "residual_sd"))
    spans = [_span(value, name) for name in ("draft_perplexity", "target_perplexity")]
    if plane[0] >= 0:
        raise PlanError(
            f"laws file: A must be negative (a worse draft is accepted less often), got {plane[0]:g}"
        )
    loss = value.get("loss", BESIROGLU.to_dict())
    if not isinstance(loss, Mapping):
        raise PlanError("laws file: 'loss' must be an object with e, a, b, nu, delta")
    points: list[Measurement] = []
    if value.get("measurements"):
        points, _ = parse_measurements(json.dumps(value["measurements"]), form="json")
    return Laws(
        loss_law_from_dict(loss),
        AcceptancePlane(*plane),
        spans[0],
        spans[1],
        quality[0],
        quality[1],
        scatter(points, quality[1]),
        tuple(points),
        str(value.get("source", "")),
    )


def _numbers(value: Mapping[str, Any], section: str, names: tuple[str, ...]) -> list[float]:
    part = value.get(section)
    if not isinstance(part, Mapping):
        raise PlanError(f"laws file: missing section {section!r}")
    missing = [name for name in names if name not in part]
    if missing:
        raise PlanError(f"laws file: {section} lacks {', '.join(missing)}")
    return [finite(f"laws file: {section} {name}", part[name]) for name in names]


def _span(value: Mapping[str, Any], name: str) -> tuple[float, float]:
    part = value.get("range")
    pair = part.get(name) if isinstance(part, Mapping) else None
    if not isinstance(pair, list) or len(pair) != 2:
        raise PlanError(f"laws file: range {name} must be a list of two numbers")
    low, high = (finite(f"laws file: range {name}", v) for v in pair)
    if low > high:
        raise PlanError(f"laws file: range {name} is reversed: {low:g}, {high:g}")
    return low, high
