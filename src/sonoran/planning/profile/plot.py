"""Four pictures of a profile: speed against K, passes by rows, hit rate against budget, accepted lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sonoran.planning.drawing import LOOKS, SHADES, Form, draw, reference
from sonoran.planning.profile.placement import Workload, nearest_acceptance
from sonoran.planning.profile.predict import DEFAULT_BUDGETS, Prediction
from sonoran.planning.profile.profile import Profile
from sonoran.planning.profile.replay import replay_budget, replay_lengths
from sonoran.planning.rounds.plan import RoundMode
from sonoran.theory.distributions import length_distribution
from sonoran.theory.speedup import hit_rate_limit

HISTOGRAM_K = 6


def render_plot(
    profile: Profile, workload: Workload, predictions: Sequence[Prediction], form: Form = "svg"
) -> bytes:
    """Draw a profile and the predictions of one workload; return the file's bytes. Raises PlanError (``draw``)."""

    def paint(figure: Any) -> None:
        axes = figure.subplots(2, 2)
        _speed(axes[0][0], predictions)
        _passes(axes[0][1], profile)
        _hits(axes[1][0], profile, workload)
        _lengths(axes[1][1], profile, workload)
        figure.suptitle(
            f"{profile.key.target.name}: batch {workload.batch}, context {workload.context}, temperature "
            f"{workload.temperature:g}",
            ha="left", x=0.01, fontsize=11,
        )  # fmt: skip

    return draw(paint, (12, 8.4), form, title=f"Profile of {profile.key.target.name}")


def best_by_k(predictions: Sequence[Prediction], mode: RoundMode) -> list[tuple[int, float]]:
    """Return (K, tokens per second) of the best configuration of a mode for each K."""
    best: dict[int, float] = {}
    for p in predictions:
        if p.mode == mode:
            best[p.num_speculative_tokens] = max(best.get(p.num_speculative_tokens, 0.0), p.tokens_per_s)
    return sorted(best.items())


def hit_rates(profile: Profile, workload: Workload, k: int) -> list[tuple[int, float]]:
    """Return (budget, hit rate) for measured fan-out and K, from replayed rounds; empty without a draft."""
    acceptance = nearest_acceptance(profile, workload)
    if acceptance is None:
        return []
    found = []
    for budget in DEFAULT_BUDGETS:
        replay = replay_budget(acceptance, k, budget)
        found.append((budget, hit_rate_limit(replay.after_primary, replay.after_backup)))
    return found


def _speed(axes: Any, predictions: Sequence[Prediction]) -> None:
    plain = max((p.tokens_per_s for p in predictions if p.mode == "ar"), default=0.0)
    reference(axes, plain, "AR")
    modes: tuple[RoundMode, RoundMode] = ("sd", "ssd")
    for mode in modes:
        points = best_by_k(predictions, mode)
        if points:
            axes.plot(*zip(*points, strict=True), label=mode.upper(), **LOOKS[mode].curve())
    axes.set_ylim(0, 1.15 * max([plain, *(p.tokens_per_s for p in predictions)]))
    axes.set_xlabel("K, tokens of a speculation")
    axes.set_ylabel("predicted tokens per second")
    axes.set_title("Speed by mode, best settings for each K")
    axes.legend()


def _passes(axes: Any, profile: Profile) -> None:
    shortest = min(curve.context for curve in profile.passes)
    shown = [curve for curve in profile.passes if curve.context == shortest]
    for index, curve in enumerate(shown):
        label = f"{curve.role} on {','.join(map(str, curve.cores))}" + (", beside" if curve.beside else "")
        axes.plot(
            *zip(*curve.curve.points, strict=True),
            "-" if curve.beside is None else "--",
            marker="o", ms=3, lw=1.6, color=SHADES[index % len(SHADES)], label=label,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows of a pass")
    axes.set_ylabel("ms")
    axes.set_title(f"Passes behind {shortest} tokens (flat: limited by memory)")
    axes.legend()


def _hits(axes: Any, profile: Profile, workload: Workload) -> None:
    acceptance = nearest_acceptance(profile, workload)
    longest = acceptance.longest if acceptance else 0
    for index, k in enumerate(k for k in (2, 4, 6) if k < longest):
        points = hit_rates(profile, workload, k)
        axes.plot(*zip(*points, strict=True), "o-", ms=4, lw=1.8, color=SHADES[index], label=f"K = {k}")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_ylim(0, 1)
    axes.set_xlabel("budget, guesses per sequence")
    axes.set_ylabel("hit rate")
    axes.set_title("Hits of the speculation cache, backup draft")
    if longest > 2:
        axes.legend(loc="lower right")


def _lengths(axes: Any, profile: Profile, workload: Workload) -> None:
    axes.set_title("Accepted tokens of a speculation")
    axes.set_xlabel("accepted")
    axes.set_ylabel("share of rounds")
    acceptance = nearest_acceptance(profile, workload)
    if acceptance is None:
        return
    k = min(HISTOGRAM_K, acceptance.longest - 1)
    if k < 1:
        return
    counts = replay_lengths(acceptance, k)
    a = acceptance.rate
    axes.bar(range(k + 1), [c / sum(counts) for c in counts], color=SHADES[0], alpha=0.75, label="measured")
    axes.plot(
        range(k + 1),
        length_distribution([a], k),
        "o--",
        ms=4,
        color=SHADES[1],
        label=f"geometric, a = {a:.2f}",
    )
    axes.legend()
