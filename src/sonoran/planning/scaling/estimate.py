"""The acceptance rate of one pair, estimated from accepted lengths (SDSL eq. 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sonoran.errors import PlanError
from sonoran.planning.scaling.regression import quantile95
from sonoran.theory.distributions import Floats


@dataclass(frozen=True, slots=True)
class AlphaEstimate:
    """alpha with two intervals: the paper's, from the misfit over gamma, and a bootstrap over prompts."""

    alpha: float
    gammas: tuple[int, ...]
    tokens_per_round: tuple[float, ...]  # mean accepted + 1
    residuals: tuple[float, ...]
    fit_error: float | None  # standard error from the residuals; None with a single gamma
    fit_interval: tuple[float, float] | None
    bootstrap_interval: tuple[float, float] | None  # None with fewer than two prompts


def alpha_from_means(mean_accepted: Mapping[int, float]) -> float:
    """Least-squares alpha from the mean accepted length at each gamma.

    The fitted quantity is mean accepted + 1: the paper names three different ones, and only this one can
    follow (1 - a**(g + 1)) / (1 - a), which counts the bonus token. Raises PlanError.
    """
    gammas = sorted(mean_accepted)
    means = np.array([[mean_accepted[g] for g in gammas]], float)
    _check(gammas, means)
    return float(_solve(np.array(gammas, float), means + 1.0)[0])


def estimate_alpha(
    accepted: Mapping[int, Sequence[Sequence[float]]], *, resamples: int = 1000, seed: int = 0
) -> AlphaEstimate:
    """Estimate alpha from ``accepted[gamma][prompt]``, the accepted lengths of that prompt's rounds.

    The bootstrap draws whole prompts, since the rounds of one text are not independent; when every gamma has
    the same prompts, the same ones are drawn for all. Raises PlanError for lengths outside [0, gamma] or
    empty prompts.
    """
    gammas = sorted(accepted)
    sums: list[Floats] = []
    counts: list[Floats] = []
    for gamma in gammas:
        prompts = [np.asarray(lengths, float) for lengths in accepted[gamma]]
        if not prompts or any(len(p) == 0 for p in prompts):
            raise PlanError(f"gamma {gamma}: every prompt needs at least one round")
        flat = np.concatenate(prompts)
        if not np.all((flat >= 0) & (flat <= gamma)):
            raise PlanError(
                f"gamma {gamma}: accepted lengths must lie in [0, {gamma}], got {flat.min():g} to "
                f"{flat.max():g}"
            )
        sums.append(np.array([p.sum() for p in prompts]))
        counts.append(np.array([float(len(p)) for p in prompts]))
    means = np.array([[s.sum() / c.sum() for s, c in zip(sums, counts, strict=True)]])
    _check(gammas, means)
    grid = np.array(gammas, float)
    alpha = float(_solve(grid, means + 1.0)[0])
    model, slope = _model(grid, np.array([alpha]))
    residuals = model[0] - (means[0] + 1.0)
    error = None
    if len(gammas) > 1:
        error = float(np.sqrt(residuals @ residuals / (len(gammas) - 1) / (slope[0] @ slope[0])))
    normal = quantile95(None)
    return AlphaEstimate(
        alpha=alpha,
        gammas=tuple(gammas),
        tokens_per_round=tuple(float(v) + 1.0 for v in means[0]),
        residuals=tuple(float(v) for v in residuals),
        fit_error=error,
        fit_interval=None if error is None else (alpha - normal * error, alpha + normal * error),
        bootstrap_interval=_bootstrap(grid, sums, counts, resamples, seed),
    )


def _check(gammas: Sequence[int], means: Floats) -> None:
    if not gammas:
        raise PlanError("alpha cannot be estimated: no accepted lengths")
    for gamma, mean in zip(gammas, means[0], strict=True):
        if gamma < 1:
            raise PlanError(f"gamma must be at least 1, got {gamma}")
        if not 0 <= mean <= gamma:
            raise PlanError(f"gamma {gamma}: the mean accepted length must lie in [0, {gamma}], got {mean:g}")
    if np.all(means[0] == 0) or np.all(means[0] == np.array(gammas)):
        raise PlanError("alpha cannot be estimated: every draft token was rejected, or every one accepted")


def _model(gammas: Floats, alpha: Floats) -> tuple[Floats, Floats]:
    """Tokens per round and their derivative in alpha, both [alphas, gammas], as polynomials: no 0 / 0 at
    alpha = 1.
    """
    powers = np.arange(int(gammas.max()) + 1, dtype=float)
    terms = alpha[:, None] ** powers
    slopes = powers * np.where(powers > 0, alpha[:, None] ** np.maximum(powers - 1, 0), 0.0)
    index = gammas.astype(int)
    return np.cumsum(terms, axis=1)[:, index], np.cumsum(slopes, axis=1, dtype=float)[:, index]


def _solve(gammas: Floats, tokens: Floats) -> Floats:
    """Minimise the squared residuals for every row of ``tokens`` [n, gammas] by bisection on the derivative.

    Every gamma alone has its root in [0, 1] and the model grows with alpha, so the derivative of the sum is
    negative below all roots and positive above them.
    """
    low, high = np.zeros(len(tokens)), np.ones(len(tokens))
    for _ in range(60):
        middle = (low + high) / 2
        model, slope = _model(gammas, middle)
        falling = ((model - tokens) * slope).sum(axis=1) < 0
        low, high = np.where(falling, middle, low), np.where(falling, high, middle)
    return np.asarray((low + high) / 2)


def _bootstrap(
    gammas: Floats, sums: list[Floats], counts: list[Floats], resamples: int, seed: int
) -> tuple[float, float] | None:
    if resamples < 1 or min(len(s) for s in sums) < 2:
        return None
    generator = np.random.default_rng(seed)
    paired = len({len(s) for s in sums}) == 1
    shared = generator.integers(0, len(sums[0]), (resamples, len(sums[0])))
    columns = []
    for total, count in zip(sums, counts, strict=True):
        draw = shared if paired else generator.integers(0, len(total), (resamples, len(total)))
        columns.append(total[draw].sum(axis=1) / count[draw].sum(axis=1))
    low, high = np.percentile(_solve(gammas, np.column_stack(columns) + 1.0), [2.5, 97.5])
    return float(low), float(high)
