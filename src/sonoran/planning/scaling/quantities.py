"""Counts of parameters and training tokens: read as people write them, checked, and written the same way."""

from __future__ import annotations

import math

from sonoran.errors import PlanError, shown

PARAMETERS = (1e6, 1e15)
TOKENS = (1e7, 1e18)
_SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


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


def format_count(value: float) -> str:
    """``70B``, ``282M``, ``15T``: three digits and the usual letter."""
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if value >= scale * 0.9995:
            return f"{value / scale:.3g}{letter}" if value < scale * 999.5 else f"{value / scale:.0f}{letter}"
    return f"{value:.3g}"


def parameter_count(name: str, value: float) -> float:
    """Check a number of parameters (1 million to 1e15)."""
    return within(name, value, *PARAMETERS, hint=" (parameters are absolute: write 70e9 or 70B, not 70)")


def token_count(name: str, value: float) -> float:
    """Check a number of training tokens (10 million to 1e18)."""
    return within(name, value, *TOKENS, hint=" (tokens are absolute: write 15e12 or 15T, not 15)")


def open_unit(name: str, value: float) -> float:
    """Check a value strictly between 0 and 1, such as an acceptance rate."""
    number = finite(name, value)
    if not 0.0 < number < 1.0:
        raise PlanError(f"{name} must lie strictly between 0 and 1, got {number:g}")
    return number


def within(name: str, value: float, low: float, high: float, hint: str = "") -> float:
    """Return ``value`` when ``low <= value <= high``; the error names the nearest valid value."""
    number = finite(name, value)
    if not low <= number <= high:
        nearest = low if number < low else high
        raise PlanError(f"{name} must lie in [{low:g}, {high:g}], got {number:g}; nearest: {nearest:g}{hint}")
    return number


def finite(name: str, value: float) -> float:
    """Return ``value`` as a float; PlanError when it is not a finite number."""
    if isinstance(value, bool):
        raise PlanError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise PlanError(f"{name} must be a number, got {shown(value)}") from None
    if not math.isfinite(number):
        raise PlanError(f"{name} must be finite, got {number}")
    return number
