"""Exponential and logarithm from IEEE additions, multiplications and divisions alone, in float64.

Library versions of these functions differ in the last bits between machines and between NumPy and C++.
Sampling must not: the definitions here are those of docs/exactness.md, and ``native/sampling/portable.hpp``
has to agree with them bit for bit.
"""

from __future__ import annotations

import math

import numpy as np

from sonoran.types import Float64Array, Int64Array

WEIGHT_BITS = 44
"""Weights are integers in units of 2**-44, so their sums are exact and do not depend on the order."""

MAX_VOCAB = 1 << 19  # so that a sum of weights stays below 2**63

LN2 = float.fromhex("0x1.62e42fefa39efp-1")
_LN2_HIGH = float.fromhex("0x1.62e42fefap-1")  # k * _LN2_HIGH is exact for the k that occur
_LN2_LOW = float.fromhex("0x1.cf79abc9e3b39p-40")
_LOG2E = float.fromhex("0x1.71547652b82fep+0")
_SQRT2 = float.fromhex("0x1.6a09e667f3bcdp+0")
_ROUND = float.fromhex("0x1.8p+52")  # adding and subtracting it rounds to the nearest integer, ties to even
_ROUND_BITS = np.int64(0x4338000000000000)
_WHOLE = float.fromhex("0x1p+52")
_WHOLE_BITS = np.int64(0x4330000000000000)
_LOWEST = -40.0  # anything below has weight 0

_EXP = (1.0, 1.0, *(1 / math.factorial(k) for k in range(2, 12)))
_LOG = tuple(1 / k for k in range(3, 23, 2))


def weights(x: Float64Array) -> Int64Array:
    """Return ``round(exp(x) * 2**44)`` as int64 for ``x <= 0``, by a Taylor polynomial of degree 11."""
    x = np.maximum(x, _LOWEST)
    shifted = x * _LOG2E + _ROUND
    k = shifted - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    value = np.full_like(r, _EXP[-1])
    for coefficient in _EXP[-2::-1]:
        value = value * r + coefficient
    exponent = shifted.view(np.int64) - _ROUND_BITS + (1023 + WEIGHT_BITS)
    scale = (exponent << 52).view(np.float64)
    rounded: Int64Array = (value * scale + _WHOLE).view(np.int64) - _WHOLE_BITS
    return rounded


def log(x: Float64Array) -> Float64Array:
    """Return the natural logarithm of positive normal numbers, by the series of artanh to the 21st power."""
    bits = np.ascontiguousarray(x, np.float64).view(np.int64)
    exponent = (bits >> 52) - 1023
    mantissa = ((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000).view(np.float64)
    high = mantissa > _SQRT2
    mantissa = np.where(high, mantissa * 0.5, mantissa)
    exponent = exponent + high
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = np.full_like(z, _LOG[-1])
    for coefficient in _LOG[-2::-1]:
        series = series * z + coefficient
    twice = s + s
    result: Float64Array = exponent.astype(np.float64) * LN2 + (twice + (twice * z) * series)
    return result


def log_scalar(x: float) -> float:
    """Return ``log`` of one number."""
    return float(log(np.array([x]))[0])
