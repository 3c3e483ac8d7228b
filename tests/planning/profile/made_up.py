"""Profiles that nobody measured: times by formula, acceptance by chance."""

from __future__ import annotations

import numpy as np

from sonoran.planning.profile.acceptance import Acceptance, TextRanks
from sonoran.planning.profile.profile import (
    MachineKey,
    ModelKey,
    PassCurve,
    PassPoint,
    Profile,
    ProfileKey,
    SamplingTime,
    Timing,
)

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def text(rate, length=400, seed=0, guessable=0.7):
    """A text whose draft tokens are accepted independently; a bonus token has a geometric rank."""
    random = np.random.default_rng(seed)
    accepted = random.random(length) < rate
    ranks = np.minimum(random.geometric(guessable, length), 65)
    rejected = np.where(accepted, 0, ranks)
    free = np.where(accepted, 1, np.minimum(ranks + 1, 65))
    return TextRanks(tuple(rejected.tolist()), tuple(free.tolist()))


def acceptance(rate=0.8, texts=4, temperature=0.0, verification="coupled", **options):
    ranks = tuple(text(rate, seed=seed, **options) for seed in range(texts))
    return Acceptance(verification, temperature, ranks, 3.5, 5.0)


def curve(role, cores, first, slope, *, beside=None, context=256, spread=0.01):
    points = tuple(PassPoint(n, Timing(first + slope * (n - 1), spread, 9)) for n in ROWS)
    return PassCurve(role, cores, context, points, beside)


def key(cores=(0, 1), draft="draft"):
    return ProfileKey(
        ModelKey("target", 1000, 1_500_000_000),
        ModelKey(draft, 300, 500_000_000) if draft else None,
        MachineKey("a processor", "avx512vnni", cores),
    )


def profile(
    *,
    target=(40.0, 1.5),
    draft=(10.0, 0.5),
    both_cores=0.6,
    beside=1.05,
    rate=0.8,
    spread=0.01,
    message=0.2,
    one_core=False,
    acceptances=None,
):
    """A two-core machine: every model on core 0 or 1 alone, on both, and beside the other; ms first, ms per row."""
    passes = []
    for context, factor in ((256, 1.0), (2048, 1.2)):
        for role, (first, slope) in (("target", target), ("draft", draft)):
            first, slope = first * factor, slope * factor
            options = {"context": context, "spread": spread}
            passes.append(curve(role, (0,), first, slope, **options))
            if one_core:
                continue
            passes.append(curve(role, (0, 1), first * both_cores, slope * both_cores, **options))
            passes.append(curve(role, (1,), first, slope, **options))
            where, other = ((0,), (1,)) if role == "target" else ((1,), (0,))
            passes.append(curve(role, where, first * beside, slope * beside, beside=other, **options))
    sampling = tuple(SamplingTime(t, Timing(0.1), Timing(0.05), Timing(0.3)) for t in (0.0, 1.0))
    return Profile(
        key((0,) if one_core else (0, 1)),
        "2026-01-01T00:00:00+00:00",
        tuple(passes),
        acceptances if acceptances is not None else (acceptance(rate),),
        sampling,
        Timing(message),
        host=Timing(0.2),
        elapsed_s=12.0,
        prompts="made up",
    )
