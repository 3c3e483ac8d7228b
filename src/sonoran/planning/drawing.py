"""Pictures of the planner and of profiles: matplotlib where it is installed, in one style."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Literal, get_args

from sonoran.errors import PlanError, nearest

Form = Literal["svg", "png"]

INK, MUTED, GRID = "#1f2430", "#6b7280", "#e5e7eb"
BLUE, RUST, TEAL, VIOLET, AMBER, SLATE = "#2563a8", "#c2410c", "#0f766e", "#7c3aed", "#f4b183", "#7c8794"

_STYLE: Any = {
    "font.size": 10, "axes.edgecolor": MUTED, "axes.labelcolor": INK, "text.color": INK,
    "xtick.color": MUTED, "ytick.color": MUTED, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.7, "axes.axisbelow": True,
    "legend.fontsize": 8.5, "legend.edgecolor": GRID, "legend.framealpha": 0.95,
    "svg.hashsalt": "sonoran",
}  # fmt: skip


def draw(paint: Callable[[Any], None], size: tuple[float, float], form: Form) -> bytes:
    """Return the bytes of a picture of ``size`` inches; ``paint`` gets the empty figure.

    Raises PlanError when matplotlib is missing or ``form`` is neither svg nor png.
    """
    if form not in get_args(Form):
        raise PlanError(f"unknown plot format {form!r}{nearest(str(form), get_args(Form))}")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise PlanError("plots need matplotlib; install it with: pip install 'sonoran[plot]'") from None
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        buffer = io.BytesIO()
        # Without a date the same numbers give the same file.
        metadata = {"Date": None} if form == "svg" else None
        figure.savefig(buffer, format=form, dpi=120, metadata=metadata, facecolor="white")
    return buffer.getvalue()
