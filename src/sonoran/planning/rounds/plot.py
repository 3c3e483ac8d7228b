"""Pictures of a simulation in the manner of the SSD paper: frontier, hits, speed-up over acceptance and temperature."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from sonoran.planning.drawing import INK, LOOKS, MARKS, SHADES, Form, beside_points, draw, look, reference
from sonoran.planning.page import items, table
from sonoran.planning.rounds.curves import Point, Speedups, Study


def render_study(study: Study, form: Form = "svg") -> bytes:
    """Draw a study; as HTML with its numbers below. Raises PlanError (``draw``)."""

    def paint(figure: Any) -> None:
        axes = figure.subplots(2, 2)
        frontier_panel(axes[0][0], study.frontier, study.published, study.measured)
        hits_panel(axes[0][1], study.hits, study.published_hits, study.num_speculative_tokens)
        _speedup_panel(axes[1][0], study.by_alpha, study.published_alpha, "acceptance per token, alpha")
        _speedup_panel(axes[1][1], study.last, study.published_last, study.last_axis)
        axes[1][0].set_title("Speed-up over acceptance")
        axes[1][1].set_title("Speed-up over " + ("temperature" if study.last_axis == "temperature" else "K"))
        figure.suptitle(f"AR, SD and SSD: {study.name}", ha="left", x=0.01, fontsize=12)
        name_batches(axes[0][0], study.frontier)

    beside = [
        f"<p>{escape(_READING)}</p>",
        items(study.notes),
        "<h2>Throughput by batch</h2>",
        _numbers(study),
    ]
    return draw(paint, (12, 9.2), form, title=f"AR, SD and SSD: {study.name}", beside=beside)


_READING = (
    "Lines are computed by the formulas of the SSD paper from latencies and acceptance; ringed marks were published or "
    "measured. Hollow marks need a pass of more rows than were measured."
)


def frontier_panel(
    axes: Any, computed: Sequence[Point], published: Sequence[Point] = (), measured: Sequence[Point] = ()
) -> None:
    """Throughput of the batch against the speed that one sequence sees, a line per mode."""
    modes = list(dict.fromkeys(p.mode for p in (*computed, *measured, *published)))
    for mode in modes:
        mine, style = [p for p in computed if p.mode == mode], look(mode)
        if mine:
            axes.plot(*_places(mine), label=style.label, **style.curve())
            beyond = [p for p in mine if p.beyond]
            axes.plot(*_places(beyond), **style.curve(ls="none", mfc="white", zorder=3))
        given = [p for p in published if p.mode == mode]
        axes.plot(*_places(given), **style.points())
        own = [p for p in measured if p.mode == mode]
        axes.plot(*_places(own), **style.points(mec="black", mew=1.6), label=None if mine else style.label)
    if any(p.beyond for p in computed):
        axes.plot([], [], "o", mfc="white", mec=INK, mew=0.7, ms=5.5, label="beyond measured passes")
    if published:
        axes.plot([], [], "o", mfc="none", mec=INK, mew=1.1, ms=8, label="published")
    if measured:
        axes.plot([], [], "o", mfc="none", mec="black", mew=1.6, ms=8, label="measured")
    axes.set_xlim(left=0)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("tokens/s of one sequence")
    axes.set_ylabel("tokens/s of the batch")
    axes.set_title("Throughput against latency, by batch size")
    axes.legend(loc="best")


def name_batches(axes: Any, points: Sequence[Point]) -> None:
    """Write the batch sizes beside the points; the last thing to do to a figure (``beside_points``)."""
    order = sorted(points, key=lambda p: (p.mode != "ssd", p.mode == "ar"))
    beside_points(axes, [(p.per_sequence, p.tokens_per_s, str(p.batch)) for p in order])


def hits_panel(
    axes: Any, hits: dict[str, list[tuple[int, float]]], published: Sequence[tuple[int, float]], k: int
) -> None:
    """Hit rate against the budget, a line per fan-out rule."""
    for index, (rule, points) in enumerate(hits.items()):
        axes.plot(
            *zip(*points, strict=True), marker=MARKS[index], ms=5, lw=1.9, color=SHADES[index], label=rule,
            ls=("-", (0, (7, 1.5)), (0, (2, 1.2)), "-.")[index % 4],
        )  # fmt: skip
    if published:
        axes.plot(*zip(*published, strict=True), label="published", **LOOKS["ssd"].points(mfc="white"))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_ylim(0, 1)
    axes.set_xlabel("budget, guesses per sequence and round")
    axes.set_ylabel("hit rate")
    axes.set_title(f"Hits of the speculation cache, K = {k}")
    axes.legend(loc="lower right")


def _speedup_panel(axes: Any, curves: Sequence[Speedups], published: Sequence[Speedups], label: str) -> None:
    reference(axes, 1.0, "AR")
    tops = [1.0]
    for mode in ("sd", "ssd"):
        style = LOOKS[mode]
        line = [(p.x, getattr(p, mode)) for p in curves]
        axes.plot(*zip(*line, strict=True), label=style.label, **style.curve(ms=4))
        points = [(p.x, getattr(p, mode)) for p in published if getattr(p, mode) is not None]
        tops += [y for _, y in (*line, *points)]
        if points:
            axes.plot(*zip(*points, strict=True), label=f"{style.label}, published", **style.points())
    axes.set_ylim(0, 1.12 * max(tops))
    axes.margins(x=0.1)  # room for the name of the reference line
    if label.startswith("K"):
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(label)
    axes.set_ylabel("tokens/s, times AR")
    axes.legend(loc="best")


def _places(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [p.per_sequence for p in points], [p.tokens_per_s for p in points]


def _numbers(study: Study) -> str:
    groups = (("computed", study.frontier), ("published", study.published), ("measured", study.measured))
    rows = [
        (look(p.mode).label, str(p.batch), f"{p.tokens_per_s:.1f}", f"{p.per_sequence:.1f}", kind,
         "beyond what was measured" if p.beyond else "")
        for kind, points in groups
        for p in points
    ]  # fmt: skip
    return table(("mode", "batch", "tokens/s", "per sequence", "how", "note"), rows, text={5})
