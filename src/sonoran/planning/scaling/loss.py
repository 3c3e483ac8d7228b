"""Pre-training loss law: perplexity of a model from its size and its training data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sonoran.errors import PlanError, nearest
from sonoran.planning.scaling.quantities import finite
from sonoran.theory.distributions import Floats


@dataclass(frozen=True, slots=True)
class LossLaw:
    """L(n, d) = e + a / n**nu + b / d**delta in nats, for n parameters and d training tokens.

    Form of Hoffmann et al. (arXiv 2203.15556), as used in SDSL (arXiv 2603.11053) eq. 2. SDSL eq. 7 and 8
    print the exponents with a minus sign inside the denominator; only the positive exponents used here give
    Table 5.
    """

    e: float
    a: float
    b: float
    nu: float
    delta: float

    def __post_init__(self) -> None:
        for name in ("e", "a", "b", "nu", "delta"):
            if finite(f"loss law constant {name}", getattr(self, name)) <= 0:
                raise PlanError(f"loss law constant {name} must be positive, got {getattr(self, name):g}")
        if max(self.nu, self.delta) > 2:
            raise PlanError(f"loss law exponents must be at most 2, got nu {self.nu:g}, delta {self.delta:g}")

    def loss(self, parameters: ArrayLike, tokens: ArrayLike) -> Floats:
        """Loss in nats per token; arguments broadcast."""
        n, d = np.asarray(parameters, float), np.asarray(tokens, float)
        return np.asarray(self.e + self.a / n**self.nu + self.b / d**self.delta)

    def perplexity(self, parameters: ArrayLike, tokens: ArrayLike) -> Floats:
        """exp(loss); natural exponent, no calibration to any data set."""
        # A loss of 600 nats is already meaningless; the cap only keeps the exponential finite.
        return np.exp(np.minimum(self.loss(parameters, tokens), 600.0))

    def log_slope(self, parameters: ArrayLike) -> Floats:
        """d loss / d ln(parameters), negative."""
        return -self.nu * self.a / np.asarray(parameters, float) ** self.nu

    def to_dict(self) -> dict[str, float]:
        """The five constants by name."""
        return asdict(self)


BESIROGLU = LossLaw(1.8172, 482.01, 2085.43, 0.3478, 0.3658)
"""Re-fit of Besiroglu et al. (arXiv 2404.10102); the default, and what SDSL uses."""

HOFFMANN = LossLaw(1.69, 406.4, 410.7, 0.34, 0.28)
"""Approach 3 of Hoffmann et al. (arXiv 2203.15556)."""

CALIBRATED = LossLaw(
    1.48126 * BESIROGLU.e - 0.51825,
    1.48126 * BESIROGLU.a,
    1.48126 * BESIROGLU.b,
    BESIROGLU.nu,
    BESIROGLU.delta,
)
"""Besiroglu's law rescaled to the 23 perplexities that SDSL measured: ln x = -0.51825 + 1.48126 L (R2 0.94)."""

NAMED = {"besiroglu": BESIROGLU, "hoffmann": HOFFMANN, "calibrated": CALIBRATED}


def parse_loss_law(text: str) -> LossLaw:
    """Read ``besiroglu``, ``hoffmann``, ``calibrated`` or five numbers ``e,a,b,nu,delta``."""
    key = text.strip().lower()
    if key in NAMED:
        return NAMED[key]
    if "," not in key:
        raise PlanError(f"unknown loss law {text!r}{nearest(key, NAMED)} (or five numbers: e,a,b,nu,delta)")
    fields = key.split(",")
    if len(fields) != 5:
        raise PlanError(f"a loss law needs five numbers e,a,b,nu,delta, got {len(fields)} in {text!r}")
    try:
        values = [float(field) for field in fields]
    except ValueError:
        raise PlanError(f"a loss law needs five numbers e,a,b,nu,delta, got {text!r}") from None
    return LossLaw(*values)


def loss_law_from_dict(value: Mapping[str, Any]) -> LossLaw:
    """Inverse of ``LossLaw.to_dict``; unknown and missing keys are errors."""
    names = ("e", "a", "b", "nu", "delta")
    for key in value:
        if key not in names:
            raise PlanError(f"loss law: unknown key {key!r}{nearest(str(key), names)}")
    missing = [name for name in names if name not in value]
    if missing:
        raise PlanError(f"loss law: missing {', '.join(missing)}")
    return LossLaw(*(finite(f"loss law constant {name}", value[name]) for name in names))
