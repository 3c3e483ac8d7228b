"""Pre-training loss law: perplexity of a model from its size and its training data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sonoran.errors import PlanError, nearest

PARAMETERS = (1e6, 1e15)
TOKENS = (1e7, 1e18)
_SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def finite(name: str, value: float) -> float:
    """Return ``value`` as a float; PlanError when it is not a finite number."""
    if isinstance(value, bool):
        raise PlanError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise PlanError(f"{name} must be a number, got {value!r}") from None
    if not math.isfinite(number):
        raise PlanError(f"{name} must be finite, got {number}")
    return number


def within(name: str, value: float, low: float, high: float, hint: str = "") -> float:
    """Return ``value`` when ``low <= value <= high``; the error names the nearest valid value."""
    number = finite(name, value)
    if not low <= number <= high:
        nearest = low if number < low else high
        raise PlanError(f"{name} must lie in [{low:g}, {high:g}], got {number:g}; nearest: {nearest:g}{hint}")
    return number


def parameters(name: str, value: float) -> float:
    """Check a number of parameters (1 million to 1e15)."""
    return within(name, value, *PARAMETERS, hint=" (parameters are absolute: write 70e9 or 70B, not 70)")


def tokens(name: str, value: float) -> float:
    """Check a number of training tokens (10 million to 1e18)."""
    return within(name, value, *TOKENS, hint=" (tokens are absolute: write 15e12 or 15T, not 15)")


def probability(name: str, value: float) -> float:
    """Check a probability in [0, 1]."""
    return within(name, value, 0.0, 1.0)


def open_unit(name: str, value: float) -> float:
    """Check a value strictly between 0 and 1, such as an acceptance rate."""
    number = finite(name, value)
    if not 0.0 < number < 1.0:
        raise PlanError(f"{name} must lie strictly between 0 and 1, got {number:g}")
    return number


def parse_count(name: str, text: str) -> float:
    """Read ``70e9``, ``70B``, ``494M``, ``15T`` or ``0.5b`` as a number."""
    body = text.strip().replace(",", "").replace("_", "")
    scale = _SUFFIXES.get(body[-1:].lower(), 1.0)
    if scale != 1.0:
        body = body[:-1]
    try:
        number = float(body) * scale
    except ValueError:
        raise PlanError(f"{name}: cannot read {text!r} as a number; examples: 70e9, 70B, 494M, 15T") from None
    return finite(name, number)


Array = NDArray[np.float64]


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

    def loss(self, parameters: ArrayLike, tokens: ArrayLike) -> Array:
        """Loss in nats per token; arguments broadcast."""
        n, d = np.asarray(parameters, float), np.asarray(tokens, float)
        return np.asarray(self.e + self.a / n**self.nu + self.b / d**self.delta)

    def perplexity(self, parameters: ArrayLike, tokens: ArrayLike) -> Array:
        """exp(loss); natural exponent, no calibration to any data set."""
        # A loss of 600 nats is already meaningless; the cap only keeps the exponential finite.
        return np.exp(np.minimum(self.loss(parameters, tokens), 600.0))

    def log_slope(self, parameters: ArrayLike) -> Array:
        """d loss / d ln(parameters), negative."""
        return -self.nu * self.a / np.asarray(parameters, float) ** self.nu

    def to_dict(self) -> dict[str, float]:
        """The five constants by name."""
        return asdict(self)


BESIROGLU = LossLaw(1.8172, 482.01, 2085.43, 0.3478, 0.3658)
"""Re-fit of Besiroglu et al. (arXiv 2404.10102); the default, and what SDSL uses."""

HOFFMANN = LossLaw(1.69, 406.4, 410.7, 0.34, 0.28)
"""Approach 3 of Hoffmann et al. (arXiv 2203.15556)."""

NAMED = {"besiroglu": BESIROGLU, "hoffmann": HOFFMANN}


def parse_loss_law(text: str) -> LossLaw:
    """Read ``besiroglu``, ``hoffmann`` or five numbers ``e,a,b,nu,delta``."""
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


def inverse_size(law: LossLaw, perplexity: float, tokens: float) -> float:
    """Parameters at which the law gives ``perplexity`` with ``tokens`` of data; inf when out of its reach."""
    rest = math.log(perplexity) - law.e - law.b / tokens**law.delta
    return math.inf if rest <= 0 else float((law.a / rest) ** (1.0 / law.nu))


MAX_GAMMA = 64
"""Longest draft that the integer searches look at, unless they are asked for more."""


def tokens_per_round(alpha: ArrayLike, gamma: ArrayLike) -> Array:
    """Expected tokens of one verification, bonus included: (1 - alpha**(gamma + 1)) / (1 - alpha).

    Assumes independent acceptance with probability ``alpha`` in (0, 1) (Leviathan et al., arXiv 2211.17192).
    """
    log_alpha = np.log(np.asarray(alpha, float))
    return np.asarray(np.expm1((np.asarray(gamma, float) + 1.0) * log_alpha) / np.expm1(log_alpha))


def throughput(alpha: ArrayLike, gamma: ArrayLike, target: ArrayLike, draft: ArrayLike) -> Array:
    """T(gamma) in tokens per FLOP: tokens per round over 2 (M + gamma N) (SDSL eq. 3).

    The target is charged 2 M however many rows it verifies, so this is a proxy of latency when reading the
    weights dominates, not a count of operations.
    """
    cost = 2.0 * (np.asarray(target, float) + np.asarray(gamma, float) * np.asarray(draft, float))
    return np.asarray(tokens_per_round(alpha, gamma) / cost)


def _excess(tau: Array) -> Array:
    """Solve s - ln(1 + s) = tau for s >= 0, so that 1 + s = -W_-1(-exp(-1 - tau)).

    Newton from the upper bound tau + sqrt(2 tau) (Chatzigeorgiou 2013); the function is convex, so the steps
    never overshoot and never underflow, whereas exp(-1 - tau) is 0 in double precision beyond tau = 745.
    """
    tau = np.maximum(tau, 0.0)
    s = tau + np.sqrt(2.0 * tau)
    for _ in range(12):
        with np.errstate(divide="ignore", invalid="ignore"):
            step = (s - np.log1p(s) - tau) * (1.0 + s) / s
        s = np.where(s > 0, np.maximum(s - np.where(np.isfinite(step), step, 0.0), 0.0), 0.0)
    return np.asarray(s)


def _tau(alpha: ArrayLike, target: ArrayLike, draft: ArrayLike) -> tuple[Array, Array]:
    decay = -np.log(np.asarray(alpha, float))
    return decay, (np.asarray(target, float) / np.asarray(draft, float) - 1.0) * decay


def lambert_w(alpha: ArrayLike, target: ArrayLike, draft: ArrayLike) -> Array:
    """W_-1(-alpha**(M/N - 1) / e), at most -1. Branch 0 would give a negative draft length."""
    _, tau = _tau(alpha, target, draft)
    return -1.0 - _excess(tau)


def optimal_gamma(alpha: ArrayLike, target: ArrayLike, draft: ArrayLike) -> Array:
    """Continuous gamma that maximises T (SDSL eq. 13); values below 0 mean that no drafting helps.

    Needs 0 < alpha < 1 and draft < target. At the optimum alpha**(gamma + 1) = -1 / W, hence the form used
    here, which does not subtract two large numbers.
    """
    decay, tau = _tau(alpha, target, draft)
    return np.asarray(np.log1p(_excess(tau)) / decay - 1.0)


def optimal_throughput(alpha: ArrayLike, target: ArrayLike, draft: ArrayLike) -> Array:
    """T at the continuous optimum, tokens per FLOP (SDSL eq. 4)."""
    decay, tau = _tau(alpha, target, draft)
    rest = -np.expm1(-decay)
    return np.asarray(decay / (2.0 * np.asarray(draft, float) * rest * (1.0 + _excess(tau))))


def best_integer_gamma(alpha: float, target: float, draft: float, *, minimum: int = 1) -> int:
    """Whole gamma of the highest T, at least ``minimum``; with ``minimum=0`` the answer 0 means: do not
    speculate.

    T has a single maximum in gamma, so the two neighbours of the continuous optimum suffice. Raises PlanError
    for alpha outside (0, 1).
    """
    open_unit("alpha", alpha)
    real = float(optimal_gamma(alpha, target, draft))
    low = max(minimum, int(np.floor(max(real, 0.0))))
    values = [float(throughput(alpha, g, target, draft)) for g in (low, low + 1)]
    return low if values[0] >= values[1] else low + 1


def autoregressive_throughput(target: ArrayLike) -> Array:
    """One token per pass: 1 / (2 M) tokens per FLOP."""
    return np.asarray(0.5 / np.asarray(target, float))


def speedup(alpha: ArrayLike, gamma: ArrayLike, target: ArrayLike, draft: ArrayLike) -> Array:
    """T(gamma) over that of autoregressive decoding: 2 M T (Leviathan et al., Theorem 3.8)."""
    return np.asarray(throughput(alpha, gamma, target, draft) / autoregressive_throughput(target))
