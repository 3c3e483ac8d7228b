"""The throughput-optimal draft size by full search (SDSL section 4.3), many problems at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from sonoran.planning.scaling.acceptance import AcceptanceLaw
from sonoran.planning.scaling.loss import LossLaw
from sonoran.planning.scaling.throughput import GAMMAS, optimal_gamma, optimal_throughput
from sonoran.theory.distributions import Floats

_GRID = 128
_BISECTIONS = 44


def smallest_draft(target: ArrayLike) -> Floats:
    """Lower end of the search; far below every optimum (the printed 1e8 of SDSL Table 7 is above some)."""
    return np.maximum(1e3, 1e-8 * np.asarray(target, float))


def envelope(
    loss: LossLaw,
    acceptance: AcceptanceLaw,
    target: ArrayLike,
    target_tokens: ArrayLike,
    draft: ArrayLike,
    draft_tokens: ArrayLike,
) -> Floats:
    """T at the best continuous gamma (tokens per FLOP); -inf where alpha is outside (0, 1) or no drafting
    helps.
    """
    m, n = np.asarray(target, float), np.asarray(draft, float)
    alpha = acceptance.alpha(loss.perplexity(n, draft_tokens), loss.perplexity(m, target_tokens))
    usable = (alpha > 0) & (alpha < 1) & (n < m)
    safe = np.where(usable, alpha, 0.5)
    usable = usable & (optimal_gamma(safe, m, n) > 0)
    return np.asarray(np.where(usable, optimal_throughput(safe, m, n), -np.inf))


def optimal_sizes(
    loss: LossLaw,
    acceptance: AcceptanceLaw,
    target: ArrayLike,
    target_tokens: ArrayLike,
    draft_tokens: ArrayLike,
) -> Floats:
    """N* for every problem (arguments broadcast; the acceptance law may hold arrays of planes of the same
    shape).

    A grid in ln N finds the maximum, bisection on d ln T / d ln N refines it to about 1e-13: values of T
    alone could not, because T is flat there. NaN where no size gives a gain.
    """
    plane = getattr(acceptance, "a", 0.0)
    m, d_target, d_draft, _ = np.broadcast_arrays(
        *(np.asarray(v, float) for v in (target, target_tokens, draft_tokens)), np.asarray(plane, float)
    )
    y = loss.perplexity(m, d_target)
    low, high = np.log(smallest_draft(m)), np.log(m)
    steps = np.linspace(0.0, 1.0, _GRID, endpoint=False)
    best = np.full(m.shape, -np.inf)
    place = np.zeros(m.shape)
    # One grid column at a time keeps the shapes of arrays of planes as they are.
    for step in steps:
        value = envelope(loss, acceptance, m, d_target, np.exp(low + step * (high - low)), d_draft)
        better = value > best
        best, place = np.where(better, value, best), np.where(better, step, place)
    centre = low + place * (high - low)
    width = (high - low) / _GRID
    left, right = np.maximum(centre - width, low), np.minimum(centre + width, high)
    for _ in range(_BISECTIONS):
        middle = (left + right) / 2
        rising = _slope_sign(loss, acceptance, m, y, np.exp(middle), d_draft, middle < centre)
        left, right = np.where(rising, middle, left), np.where(rising, right, middle)
    return np.asarray(np.where(np.isfinite(best), np.exp((left + right) / 2), np.nan))


def _slope_sign(
    loss: LossLaw,
    acceptance: AcceptanceLaw,
    m: Floats,
    y: Floats,
    n: Floats,
    draft_tokens: Floats,
    below: Floats,
) -> Floats:
    """Whether T still rises with N; gamma is at its optimum, so only its direct effects count (envelope
    theorem).
    """
    x = loss.perplexity(n, draft_tokens)
    alpha = acceptance.alpha(x, y)
    usable = (alpha > 0) & (alpha < 1) & (n < m)
    safe = np.where(usable, alpha, 0.5)
    gamma = optimal_gamma(safe, m, n)
    usable = usable & (gamma > 0)
    gamma = np.maximum(gamma, 0.0)
    power = safe**gamma
    gain = 1.0 / (1.0 - safe) - (gamma + 1.0) * power / (1.0 - safe * power)
    rise = gain * acceptance.slope(x, y) * x * loss.log_slope(n)
    return np.asarray(np.where(usable, rise > gamma * n / (m + gamma * n), below))


def flat_range(
    curve: Callable[[Floats], Floats], best: float, low: float, high: float, fraction: float
) -> tuple[float, float]:
    """Sizes around ``best`` at which ``curve`` stays at or above ``fraction`` of its value there."""
    floor = fraction * float(curve(np.array([best]))[0])
    ends = []
    for end in (low, high):
        inside, outside = np.log(best), np.log(end)
        if float(curve(np.array([end]))[0]) >= floor:
            ends.append(end)
            continue
        for _ in range(45):
            middle = (inside + outside) / 2
            good = float(curve(np.exp(np.array([middle])))[0]) >= floor
            inside, outside = (middle, outside) if good else (inside, middle)
        ends.append(float(np.exp(inside)))
    return ends[0], ends[1]


def search(rate: Callable[[Floats, Floats], Floats], low: float, high: float) -> tuple[float, int, float]:
    """Maximise ``rate(sizes [n, 1], gammas [1, g])`` over sizes in [low, high] and whole gamma from 1 on.

    Returns size, gamma, rate (-inf when nothing is usable). Works for any cost, kinks included: a grid in ln
    N is narrowed around its best point until the size is known to about 1e-6.
    """
    left, right = np.log(low), np.log(high)
    points, best = 240, (float("nan"), 1, float("-inf"))
    for _ in range(6):
        sizes = np.exp(np.linspace(left, right, points))
        values = rate(sizes[:, None], GAMMAS[None, :])
        row, column = divmod(int(np.argmax(values)), values.shape[1])
        if values[row, column] > best[2]:
            best = (float(sizes[row]), int(GAMMAS[column]), float(values[row, column]))
        left, right = np.log(sizes[max(row - 1, 0)]), np.log(sizes[min(row + 1, points - 1)])
        points = 24
    return best
