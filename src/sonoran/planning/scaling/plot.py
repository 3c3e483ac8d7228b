"""Two pictures of a plan: throughput against draft size, and N* against the size of the target."""

from __future__ import annotations

from typing import Any

import numpy as np

from sonoran.planning.drawing import (
    BAND,
    GRID,
    INK,
    LOOKS,
    MUTED,
    SLATE,
    TEAL,
    VIOLET,
    Form,
    beside_points,
    draw,
    reference,
)
from sonoran.planning.scaling.costs import PUBLISHED_COST, CostModel
from sonoran.planning.scaling.laws import Laws
from sonoran.planning.scaling.models import anchored, published_laws, published_tables
from sonoran.planning.scaling.optimum import optimal_sizes
from sonoran.planning.scaling.planning import Plan, throughput_curve
from sonoran.planning.scaling.quantities import format_count
from sonoran.planning.scaling.rates import SsdSettings, rates_by_size
from sonoran.planning.scaling.size_law import LAW_RANGE, PUBLISHED_AFFINE
from sonoran.planning.scaling.throughput import GAMMAS
from sonoran.theory.distributions import Floats

CURVE, HIDDEN, BEST, RULE, REAL = LOOKS["sd"].colour, LOOKS["ssd"].colour, VIOLET, SLATE, TEAL


def render_plot(
    answer: Plan, *, laws: Laws | None = None, cost: CostModel = PUBLISHED_COST, form: Form = "svg"
) -> bytes:
    """Draw a plan made with the same ``laws`` and ``cost``; return the file's bytes. Raises PlanError (``draw``)."""
    general = (
        laws or published_laws()
    )  # of all targets; what was measured of this one moves only its own curve
    chosen = anchored(general, answer.anchors)

    def paint(figure: Any) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _throughput(left, answer, chosen, cost)
        _sizes(right, answer, general, cost)

    return draw(paint, (12.5, 5.2), form, title=f"Draft plan for {answer.target}")


def _throughput(axes: Any, answer: Plan, laws: Laws, cost: CostModel) -> None:
    m = answer.target_parameters
    curve = throughput_curve(laws, cost, m, answer.target_tokens, answer.draft_tokens)
    sizes = np.geomspace(m / 20000, m * 0.95, 600)
    speed = curve(sizes) * float(cost.verify(m, 0.0))
    shown = np.isfinite(speed) & (speed > 0)
    reference(axes, 1.0, "plain decoding")
    top = max(
        [
            float(speed[shown].max()) if shown.any() else 1.0,
            *(max(r.speedup, r.ssd_speedup) for r in answer.candidates),
        ]
    )
    best = answer.optimum
    if best is not None:
        axes.axvspan(*best.within_5_percent, color=BAND, alpha=0.22, lw=0, label="within 5 % of the best")
        axes.axvspan(*best.within_1_percent, color=BAND, alpha=0.45, lw=0, label="within 1 %")
    if answer.hidden is not None:
        settings = answer.hidden.settings
        hidden = _hidden_curve(answer, settings, laws, cost, sizes)
        top = max(top, float(hidden.max()))
        axes.plot(
            sizes,
            hidden,
            color=HIDDEN,
            lw=1.8,
            zorder=2,
            label=f"SSD, hit rate {settings.hit_rate:.2g}",
        )
    axes.plot(sizes[shown], speed[shown], color=CURVE, lw=2.2, ls=LOOKS["sd"].line, zorder=3, label="SD")
    if best is not None:
        label = f"best SD draft: {format_count(best.parameters)}, K = {best.num_speculative_tokens}"
        label += f", {best.integer_speedup:.2f}x"
        axes.plot([best.parameters], [best.speedup], "*", ms=15, color=BEST, zorder=6, label=label)
        if best.interval is not None:
            below = np.array([[best.parameters - best.interval.low], [best.interval.high - best.parameters]])
            axes.errorbar(
                [best.parameters],
                [0.92 * best.speedup],
                xerr=np.maximum(below, 0.0),
                color=BEST,
                lw=2,
                capsize=4,
                zorder=5,
                label="95 % of N* (targets drawn again)",
            )
    axes.set_xscale("log")
    # Nothing to see where alpha is not positive.
    axes.set_xlim(max(sizes[0], 0.5 * float(sizes[shown][0])) if shown.any() else sizes[0], m)
    # Plain decoding and its name are always inside, whatever pays; above is room for the legend.
    axes.set_ylim(min(0.9, 0.9 * top), max(top, 1.05) + 0.45 * max(top - 0.9, 0.25))
    _count_axis(axes.xaxis)
    axes.set_xlabel("parameters of the draft")
    axes.set_ylabel("predicted speed-up over plain decoding")
    axes.set_title(f"How large a draft for {answer.target}?")
    _candidates(axes, answer)
    axes.legend(loc="upper center", ncols=2)


def _hidden_curve(answer: Plan, settings: SsdSettings, laws: Laws, cost: CostModel, sizes: Floats) -> Floats:
    """Best SSD speed-up by draft size, 1 where no draft helps."""
    m = answer.target_parameters
    rate = rates_by_size(laws, cost, settings, m, answer.target_tokens, answer.draft_tokens)
    rates = rate(sizes[:, None], GAMMAS[None, :]).max(axis=1)
    return np.asarray(np.maximum(rates * float(cost.verify(m, 0.0)), 1.0))


def _candidates(axes: Any, answer: Plan) -> None:
    """Real models: SD filled, SSD hollow where it was asked for, a line between the two, names where there is room."""
    real = [row for row in answer.candidates if row.alpha is not None]
    if not real:
        return
    sizes = [row.parameters for row in real]
    filled = {"color": REAL, "mec": "white", "mew": 0.8, "ms": 6, "zorder": 7}
    axes.plot(sizes, [row.speedup for row in real], "s", label="candidates, SD", **filled)
    if answer.hidden is not None:
        hollow = {"color": REAL, "mfc": "white", "mew": 1.4, "ms": 6, "zorder": 7}
        axes.plot(sizes, [row.ssd_speedup for row in real], "D", label="candidates, SSD", **hollow)
        axes.vlines(
            sizes,
            [row.speedup for row in real],
            [row.ssd_speedup for row in real],
            color=REAL,
            lw=0.8,
            zorder=4,
        )
    family = answer.target.split("/")[0] + "/"
    first = sorted(real, key=lambda r: (r.name != answer.best_candidate, family not in r.name, r.parameters))
    beside_points(axes, [(row.parameters, row.speedup, row.name) for row in first], REAL)


def _sizes(axes: Any, answer: Plan, laws: Laws, cost: CostModel) -> None:
    m = answer.target_parameters
    low, high = min(1e9, m / 2), max(1e12, m * 2)
    targets = np.geomspace(low, high, 200)
    d_target, d_draft = answer.target_tokens, answer.draft_tokens
    axes.plot(
        targets,
        optimal_sizes(laws.loss, laws.law, targets, d_target, d_draft),
        color=CURVE,
        lw=2.2,
        zorder=3,
        label="full optimum (published cost)",
    )
    axes.plot(targets, PUBLISHED_AFFINE.size(targets), color=RULE, lw=1.2, ls=(0, (2, 2)))
    inside = np.geomspace(*LAW_RANGE, 50)
    axes.plot(
        inside,
        PUBLISHED_AFFINE.size(inside),
        color=RULE,
        lw=2.2,
        label="0.00271 M + 87.1M, dotted where not fitted",
    )
    axes.plot(targets, targets / 200, color=MUTED, lw=1, ls=(0, (6, 3)), label="M / 200")
    tables = published_tables()
    points = [
        (tables["target_parameters"][name], cell["draft_parameters"])
        for name, row in tables["table5"].items()
        for cell in row.values()
    ]
    axes.plot(
        *zip(*points, strict=True), ".", ms=5, color=INK, alpha=0.55, zorder=4, label="the paper's Table 5"
    )
    best = answer.optimum
    if best is not None:
        axes.plot([m, m], best.within_1_percent, color=BAND, lw=6, alpha=0.6, zorder=2, solid_capstyle="butt")
        if best.interval is not None:
            axes.plot([m, m], [best.interval.low, best.interval.high], color=BEST, lw=2, zorder=5)
        own = cost != PUBLISHED_COST or bool(answer.anchors)
        label = "this plan (its own costs, measurements)" if own else "this plan"
        axes.plot([m], [best.parameters], "*", ms=15, color=BEST, zorder=6, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    _count_axis(axes.xaxis)
    _count_axis(axes.yaxis)
    axes.set_xlabel("parameters of the target M")
    axes.set_ylabel("best draft N*")
    axes.set_title("The law, and where it was fitted")
    axes.axvspan(*LAW_RANGE, color=GRID, alpha=0.55, lw=0, zorder=0)
    axes.legend(loc="upper left")


def _count_axis(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 3.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))
    axis.set_minor_formatter(NullFormatter())
